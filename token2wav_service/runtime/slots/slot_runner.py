"""Runs batches of streams on pools: one program, a CUDA graph, per bucket of streams and tokens.

The engine's `Runner` for GPUs, under history policy `prompt_and_recent`. A voice's streams read its prompt's keys and
values where they are; a stream's own newest ones, and what its convolutions continue from, are a place in the pool that
changes in place. On a device without CUDA graphs the same programs run one kernel after another (for tests).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpukit.graphs import compiling_side_by_side, own_stream
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.engine.runner import BesideRoom, ChunkOutcome, ChunkWork, Finish, ModelFacts
from token2wav_service.errors import InvalidPromptError, Token2WavError
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.flow_state import ChunkSpan, FlowState, FlowVoice, shared_tokens
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.causal_hift import CausalHiFT, Spectra
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.bucket_program import BucketProgram, ProgramTable
from token2wav_service.runtime.slots.chunk_solver import ChunkSolver
from token2wav_service.runtime.slots.dit_solver import DiTSolver
from token2wav_service.runtime.slots.pool import BATCH_FIELDS, SCRATCH_ROW, PoolSizes, SlotPool, allocate_pool
from token2wav_service.runtime.slots.prompt_flow import PromptFlow
from token2wav_service.runtime.slots.slot_flow import SlotFlow, make_solver
from token2wav_service.runtime.slots.slot_vocoder import (
    CausalSlotVocoder,
    SlotVocoder,
    VocoderProgress,
    allocate_vocoder,
)
from token2wav_service.runtime.slots.step_shapes import STREAM_BUCKETS, TOKEN_BUCKETS, StepShapes
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.types import FloatArray, TokenChunk, VoiceFeatures


@dataclass(frozen=True)
class SlotVoice:
    """A voice on the device; its streams read its prompt's keys and values where they are."""

    prompt: FlowVoice
    speaker: Tensor
    """[80] projected speaker vector."""
    tails: Tensor | None
    """The solver's tails after the prompt, in the pool's layout, where all streams start with the same."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        own = (self.speaker,) if self.tails is None else (self.speaker, self.tails)
        return self.prompt.num_bytes + sum(tensor.numel() * tensor.element_size() for tensor in own)


@dataclass
class StreamSlot:
    """One stream's place and how far it is, in tokens from the prompt's start; changed in place by `run`."""

    voice: SlotVoice
    slot: int
    num_bytes: int
    """Bytes of the slot."""
    start: FlowState | None = None
    """State that the stream started from, whose keys are read as long as it lives; None before its first chunk."""
    first_token: int = 0
    """Number of tokens whose blocks are complete; without a block mask, of all before the next chunk."""
    end_token: int = 0
    """Number of tokens whose mel was given out, or is the prompt's."""
    pending: tuple[int, ...] = ()
    """Token ids from `first_token` to `end_token`, which the next chunk computes again."""
    generated: int = 0
    """Mel frames that were given out."""
    vocoder: VocoderProgress = field(default_factory=VocoderProgress)
    is_broken: bool = False
    """True while a step changes the slot, and for ever if that step failed."""


class SlotRunner:
    """Holds models, pool and graphs; holds no stream."""

    def __init__(
        self,
        flow: AnyFlow,
        vocoder: HiFT | CausalHiFT,
        policy: SynthesisPolicy,
        sizes: PoolSizes,
        stream_buckets: Sequence[int] = STREAM_BUCKETS,
        token_buckets: Sequence[int] | None = None,
        solver: ChunkSolver | None = None,
        convolutions: VocoderNetwork | Spectra | None = None,
    ) -> None:
        """Allocate the pool and pack the weights.

        Args:
            flow: in eval mode on its device, in the dtype to compute in.
            vocoder: float32, on the same device, weight norms folded.
            policy: neither history `upstream` nor the reference's.
            sizes: room of the pool.
            stream_buckets, token_buckets: shapes to prepare programs for, ascending; tokens without look-ahead, those
                that are computed again included. None takes the flow's `token_buckets_of`.
            solver: runs the estimator; None takes the fused kernels.
            convolutions: runs the vocoder's convolutions: a network for a HiFT, `Spectra` for a causal one; None takes
                the fused kernels, or the causal vocoder's own.

        Raises:
            ValueError: a policy this runner does not have.
        """
        if policy.is_reference:
            raise ValueError("the slot runner keeps prompt and recent frames with counter noise; use runner=torch")
        self.policy = replace(policy, history=HistoryPolicy.PROMPT_AND_RECENT)
        self.sizes, self.device, self.dtype = sizes, flow.device, flow.dtype
        self.shapes = StepShapes(tuple(stream_buckets), tuple(token_buckets or token_buckets_of(flow)))
        self.slots = SlotPool(sizes.streams)
        slots, (ring, conformer_ring) = sizes.streams + 1, sizes.rings(flow)
        is_fused = solver is None and convolutions is None
        solver = solver or make_solver(flow, flow.steps(policy.ode_steps))
        kept: Any = allocate_vocoder(slots, vocoder)
        self.vocoder: SlotVocoder | CausalSlotVocoder
        if isinstance(vocoder, CausalHiFT):
            assert not isinstance(convolutions, VocoderNetwork)
            self.vocoder = CausalSlotVocoder(vocoder, kept, convolutions)
        else:
            assert convolutions is None or isinstance(convolutions, VocoderNetwork)
            self.vocoder = SlotVocoder(vocoder, self.policy, kept, self.dtype, convolutions)
        self.pool = allocate_pool(flow, solver.allocate(slots, ring), kept, slots, conformer_ring)
        self.flow = SlotFlow(flow, solver, self.pool, sizes.max_prompt_frames, self.shapes.token_buckets)
        self._plain = StreamFlow(flow, self.policy)
        # Plain modules prepare voices where there are no graphs to gain from, and beside other solvers.
        self._prompts: PromptFlow | None = None
        if self.device.type == "cuda" and isinstance(solver, DiTSolver):
            self._prompts = PromptFlow(self._plain, solver, sizes.max_prompt_frames)
        self.facts = ModelFacts(flow.vocab_size, flow.lookahead, flow.stride, self._plain.hop_multiple)
        self._programs = ProgramTable(self.flow, self.vocoder, self.shapes, self.device)
        self._beginning = Lock()
        """Streams of one voice share the states that they start from."""
        self._stream: torch.cuda.Stream | None = None
        self.beside: BesideRoom | None = None
        self.queues = is_fused and self.device.type == "cuda"
        if is_fused:  # an engine of TensorRT's runs one step at a time
            shapes = self.shapes.beside()
            self.beside = BesideRoom(shapes.stream_buckets[-1], shapes.token_buckets[-1])
            self._stream = own_stream(self.device)
            self._programs_beside = ProgramTable(self.flow, self.vocoder, shapes, self.device, self._stream)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every kernel and capture every bucket, so that nothing compiles under load."""
        tables: list[ProgramTable | PromptFlow] = [self._programs]
        if self.beside is not None:
            tables.append(self._programs_beside)
        if self._prompts is not None:
            tables.append(self._prompts)
        with compiling_side_by_side(), self.flow.solver.only_first_step():
            for table in tables:
                table.warm_up()
        for table in tables:
            table.capture()

    @torch.inference_mode()
    def prepare_voice(self, features: VoiceFeatures) -> SlotVoice:
        """Run a voice's prompt once.

        Raises:
            InvalidPromptError: longer than the runner has room for.
        """
        if len(features.prompt_mel) > self.sizes.max_prompt_frames:
            raise InvalidPromptError(
                f"the prompt has {len(features.prompt_mel)} mel frames, this server takes "
                f"{self.sizes.max_prompt_frames} (50 a second); cut it"
            )
        speaker = torch.from_numpy(features.speaker_embedding)
        prompt = (self._prompts or self._plain).prepare_voice(
            torch.from_numpy(features.prompt_tokens), torch.from_numpy(features.prompt_mel), speaker
        )
        tails = None
        if not self.flow.block:
            tails = self.flow.solver.place_tails(prompt.starts[0].caches["solver_tail"]).contiguous()
        normalised = functional.normalize(speaker.to(self.device, self.dtype), dim=0)
        return SlotVoice(prompt, self.flow.flow.spk_embed_affine_layer(normalised), tails)

    def open(self, voice: SlotVoice) -> StreamSlot:
        """Take a slot.

        Raises:
            CapacityError: all are taken.
        """
        return StreamSlot(voice, self.slots.allocate(), self.pool.bytes_per_stream)

    def close(self, state: StreamSlot) -> None:
        """Give the slot back."""
        self.slots.free(state.slot)

    def bucket(self, chunk: TokenChunk, state: StreamSlot) -> int:
        """Return the tokens that the chunk's program has room for."""
        return self.shapes.token_bucket(self._computed(len(chunk.token_ids), chunk.is_last, state))

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        """See `Runner.step_size`."""
        return self.shapes.step_size(bucket, ready, is_crowded)

    def program(self, streams: int, tokens: int, prompt_size: int = 0, *, beside: bool = False) -> BucketProgram:
        """Return the program of a bucket, making it at first use; one of any other size is not kept."""
        return (self._programs_beside if beside else self._programs).get(streams, tokens, prompt_size)

    def run(self, works: Sequence[ChunkWork], *, beside: bool = False) -> list[ChunkOutcome]:
        """Launch a step and wait for it."""
        return self.launch(works, beside=beside)()

    @torch.inference_mode()
    def launch(self, works: Sequence[ChunkWork], *, beside: bool = False) -> Finish:
        """Begin every chunk; in the largest one's program if it has room for all, else each in its own bucket's.

        Raises:
            Token2WavError: a state was broken by a step that failed.
        """
        if any(work.state.is_broken for work in works):
            raise Token2WavError("an earlier step failed while it changed this stream; open it again")
        with torch.cuda.stream(self._stream if beside else None):
            computed = [self._computed(len(work.token_ids), work.is_last, work.state) for work in works]
            groups = [
                (indices, self._launch_group([works[index] for index in indices], tokens, beside=beside))
                for indices, tokens in self.shapes.groups(computed)
            ]

        def finish() -> list[ChunkOutcome]:
            speech = {i: row for indices, group in groups for i, row in zip(indices, group(), strict=False)}
            return [ChunkOutcome(self._advance(work, speech[i]), work.state) for i, work in enumerate(works)]

        return finish

    def _computed(self, count: int, is_last: bool, state: StreamSlot) -> int:
        """Return the tokens from the stream's last complete block on that a chunk of `count` tokens makes mel of."""
        hop = self.facts.new_tokens(count, is_last)
        if state.start is not None:
            return len(state.pending) + hop
        return hop + self._plain.waiting_tokens(state.voice.prompt, 0 if is_last else hop)

    def _launch_group(self, works: Sequence[ChunkWork], tokens: int, *, beside: bool) -> Callable[[], FloatArray]:
        begun = [self._begin(work) for work in works if work.state.start is None]
        streams = self.shapes.stream_bucket(len(works))
        program = self.program(streams, tokens, self._prompt_size(works), beside=beside)
        for work in works:
            work.state.is_broken = True
        self._fill_slots(begun)
        return program.launch(*self._inputs(works, program.streams, tokens))

    def _prompt_size(self, works: Sequence[ChunkWork]) -> int:
        """Return what the solver wants these streams' prompts padded to."""
        frames = max(self._shared(work.state.start) for work in works)
        end = max(self._span(work).end for work in works)
        return self.flow.solver.prompt_size(self.flow.stride * frames, self.flow.stride * end)

    def _shared(self, start: FlowState | None) -> int:
        """Return the prompt's tokens whose keys the voice's streams share."""
        assert start is not None
        return shared_tokens(self.flow.flow, start.prompt_tokens)

    def _begin(self, work: ChunkWork) -> StreamSlot:
        """Find what a new stream starts from, which its first hop decides."""
        state: StreamSlot = work.state
        hop = 0 if work.is_last else self.facts.new_tokens(len(work.token_ids), is_last=False)
        with self._beginning:
            prompt = state.voice.prompt
            is_new = self._plain.trimmed(len(prompt.tokens), hop) not in prompt.starts
            start = state.start = self._plain.begin(prompt, hop)
            if is_new and self._stream is not None:  # a step beside may read it next
                torch.cuda.current_stream().synchronize()
        state.first_token, state.end_token = start.first_token, start.end_token
        state.pending = tuple(start.pending.tolist()) if self.flow.block else ()
        return state

    def _fill_slots(self, states: Sequence[StreamSlot]) -> None:
        """Copy what streams start from into their slots."""
        pool = self.pool
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for state in states:
            start, slot, voice = state.start, state.slot, state.voice
            assert start is not None
            tails = self.flow.solver.place_tails(start.caches["solver_tail"]) if voice.tails is None else voice.tails
            targets += [pool.solver.tails[slot], pool.lookahead_tail[slot], pool.speaker[slot]]
            sources += [tails, start.caches["lookahead_tail"], voice.speaker]
            if pool.conformer is not None:
                targets.append(pool.conformer.upsample_tail[slot])
                sources.append(start.caches["upsample_tail"])
            if pool.cond is not None:
                mel = start.cond.T
                targets.append(pool.cond[slot, : len(mel)])
                sources.append(mel)
        if targets:
            torch._foreach_copy_(targets, sources)

    def _inputs(self, works: Sequence[ChunkWork], streams: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """Return the batch's fields [fields, B] and tokens [B, T + 3], padded with scratch rows."""
        window = np.zeros((streams, tokens + self.flow.lookahead), np.int64)
        rows = []
        for row, work in enumerate(works):
            ids = (*work.state.pending, *work.token_ids)
            window[row, : len(ids)] = ids
            rows.append(self._row(work, len(ids)))
        rows += [SCRATCH_ROW] * (streams - len(rows))
        return np.array([[row.get(name, 0) for row in rows] for name in BATCH_FIELDS], np.int64), window

    def _row(self, work: ChunkWork, num_tokens: int) -> dict[str, int]:
        """Return one stream's fields of a `SlotBatch`."""
        state, stride, span = work.state, self.flow.stride, self._span(work)
        start = state.start
        assert start is not None
        prompts = {name: tensor.data_ptr() for name, tensor in start.caches.items()}
        return {
            "slots": state.slot,
            "solver_prompts": prompts["solver_kv"],
            "token_prompts": prompts.get("token_kv", 0),
            "frame_prompts": prompts.get("frame_kv", 0),
            "shared_frames": stride * self._shared(start),
            "prompt_frames": stride * start.prompt_tokens,
            "first_frames": stride * span.first,
            "skipped": stride * (span.start - span.first),
            "committed": span.committed - span.first,
            "generated": state.generated,
            "num_tokens": num_tokens,
            "is_last": int(work.is_last),
            "seeds": work.seed,
            "mel_tails": state.vocoder.mel_tail,
            "has_speech": int(state.vocoder.has_speech),
        }

    def _span(self, work: ChunkWork) -> ChunkSpan:
        state, spoken = work.state, self.facts.new_tokens(len(work.token_ids), work.is_last)
        return ChunkSpan.of(state.first_token, state.end_token, spoken, self.facts.hop_multiple)

    def _advance(self, work: ChunkWork, speech: FloatArray) -> FloatArray:
        """Move the host's half of a state on, and cut the row's samples to deliver."""
        state, span = work.state, self._span(work)
        ids = (*state.pending, *work.token_ids)
        frames = self.facts.new_frames(len(work.token_ids), work.is_last)
        state.pending = ids[span.committed - span.first : span.end - span.first]
        state.first_token, state.end_token = span.committed, span.end
        state.generated += frames
        state.is_broken = False
        return self.vocoder.deliver(state.vocoder, frames, speech, is_last=work.is_last)


def token_buckets_of(flow: AnyFlow) -> tuple[int, ...]:
    """Return the tokens of the chunks to plan for.

    Of a block-masked flow one, two and four blocks; a last chunk speaks its look-ahead, too. First chunks of whole
    blocks find one more block of the prompt incomplete.
    """
    if not flow.block_tokens:
        return TOKEN_BUCKETS
    block, ahead = flow.block_tokens, flow.lookahead
    return (block, block + ahead, 2 * block, 4 * block + ahead, 5 * block + ahead)
