"""Runs batches of block-masked flows' streams on pools: one program, a CUDA graph, per bucket of streams and tokens.

The engine's `Runner` for CosyVoice2 and CosyVoice3 on GPUs, under history policy `prompt_and_recent`. A voice's streams
read its prompt's complete blocks where they are; a stream's own newest blocks, and what its convolutions continue from,
are a place in the pool that changes in place. On a device without CUDA graphs the same programs run one kernel after
another (for tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.config import HistoryPolicy, NoiseSource, Parity, SynthesisPolicy
from token2wav_service.engine.runner import ChunkOutcome, ChunkWork, ModelFacts
from token2wav_service.errors import InvalidPromptError, Token2WavError
from token2wav_service.models.flow.block_flow import BlockFlow
from token2wav_service.models.flow.block_stream import BlockState, BlockStreamFlow, BlockVoice
from token2wav_service.models.vocoder.causal_hift import CausalHiFT, Spectra
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.block_pool import BlockPoolSizes, BlockRow, allocate_block_pool, ring_frames
from token2wav_service.runtime.slots.block_slot_flow import BlockSlotFlow, make_solver
from token2wav_service.runtime.slots.block_solver import BlockSolver
from token2wav_service.runtime.slots.bucket_program import BatchedVocoder, BucketProgram, ProgramTable
from token2wav_service.runtime.slots.causal_slot_vocoder import CausalSlotVocoder, allocate_causal_vocoder
from token2wav_service.runtime.slots.pool import SCRATCH_SLOT, SlotPool, allocate_vocoder
from token2wav_service.runtime.slots.slot_vocoder import SlotVocoder, VocoderProgress
from token2wav_service.runtime.slots.step_shapes import STREAM_BUCKETS, StepShapes
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.types import FloatArray, TokenChunk, VoiceFeatures


@dataclass(frozen=True)
class BlockSlotVoice:
    """A voice on the device; its streams read its prompt's blocks where they are."""

    prompt: BlockVoice
    speaker: Tensor
    """[80] projected speaker vector."""

    @property
    def frames(self) -> int:
        """Mel frames of the prompt."""
        return self.prompt.frames

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        return self.prompt.num_bytes + self.speaker.numel() * self.speaker.element_size()


@dataclass
class BlockSlotState:
    """One stream's place and how far it is, in tokens from the prompt's start; changed in place by `run`."""

    voice: BlockSlotVoice
    slot: int
    num_bytes: int
    """Bytes of the slot."""
    start: BlockState | None = None
    """State that the stream started from, whose blocks are read as long as it lives; None before its first chunk."""
    first_token: int = 0
    """Number of tokens whose blocks are complete."""
    end_token: int = 0
    """Number of tokens whose mel was given out, or is the prompt's."""
    pending: tuple[int, ...] = ()
    """Token ids from `first_token` to `end_token`, which the next chunk computes again."""
    generated: int = 0
    """Mel frames that were given out."""
    vocoder: VocoderProgress = field(default_factory=VocoderProgress)
    is_broken: bool = False
    """True while a step changes the slot, and for ever if that step failed."""


@dataclass(frozen=True)
class _Span:
    """What one row computes, in tokens from the prompt's start."""

    first: int
    start: int
    """The first token whose mel is given out."""
    end: int
    committed: int
    """End of the last complete block."""


class BlockSlotRunner:
    """Holds models, pool and graphs; holds no stream."""

    def __init__(
        self,
        flow: BlockFlow,
        vocoder: HiFT | CausalHiFT,
        policy: SynthesisPolicy,
        sizes: BlockPoolSizes,
        stream_buckets: Sequence[int] = STREAM_BUCKETS,
        token_buckets: Sequence[int] | None = None,
        solver: BlockSolver | None = None,
        convolutions: VocoderNetwork | Spectra | None = None,
    ) -> None:
        """Allocate the pool and pack the weights.

        Args:
            flow: in eval mode on its device, in the dtype to compute in.
            vocoder: float32, on the same device, weight norms folded.
            policy: history and parity must not be `upstream`, noise must be `counter`.
            sizes: room of the pool.
            stream_buckets, token_buckets: shapes to prepare programs for, ascending; tokens without look-ahead, those
                that are computed again included. None takes `block_buckets`.
            solver: runs the estimator; None takes the fused kernels.
            convolutions: runs the vocoder's convolutions: a network for a HiFT, `Spectra` for a causal one; None takes
                the fused kernels, or the causal vocoder's own.

        Raises:
            ValueError: a policy this runner does not have.
        """
        is_upstream = policy.history is HistoryPolicy.UPSTREAM or policy.noise is NoiseSource.UPSTREAM
        if is_upstream or policy.parity is Parity.UPSTREAM:
            raise ValueError("the slot runner keeps prompt and recent blocks with counter noise; use runner=torch")
        self.policy = replace(policy, history=HistoryPolicy.PROMPT_AND_RECENT)
        self.sizes = sizes
        self.device, self.dtype = flow.device, flow.spk_embed_affine_layer.weight.dtype
        self.shapes = StepShapes(tuple(stream_buckets), tuple(token_buckets or block_buckets(flow)))
        self.slots = SlotPool(sizes.streams)
        slots, ring = sizes.streams + 1, ring_frames(flow, sizes.recent_frames)
        solver = solver or make_solver(flow, policy.ode_steps)
        self._vocoder_pool: Any
        self.vocoder: BatchedVocoder
        if isinstance(vocoder, CausalHiFT):
            self._vocoder_pool = allocate_causal_vocoder(slots, vocoder)
            assert not isinstance(convolutions, VocoderNetwork)
            self.vocoder = CausalSlotVocoder(vocoder, self.policy, self._vocoder_pool, convolutions)
        else:
            self._vocoder_pool = allocate_vocoder(slots, vocoder.config, self.device)
            assert convolutions is None or isinstance(convolutions, VocoderNetwork)
            self.vocoder = SlotVocoder(vocoder, self.policy, self._vocoder_pool, self.dtype, convolutions)
        self.pool = allocate_block_pool(flow, solver.allocate(slots, ring), self._vocoder_pool, slots, ring)
        self.flow = BlockSlotFlow(flow, solver, self.pool, sizes.max_prompt_frames, self.shapes.token_buckets)
        self._prompts = BlockStreamFlow(flow, self.policy)
        self.facts = ModelFacts(flow.vocab_size, flow.lookahead, flow.stride, flow.block_tokens)
        self._programs = ProgramTable(self.flow, self.vocoder, self.shapes, self.device)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every kernel and capture every bucket, so that nothing compiles under load."""
        self._programs.prepare()

    @torch.inference_mode()
    def prepare_voice(self, features: VoiceFeatures) -> BlockSlotVoice:
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
        prompt = self._prompts.prepare_voice(
            torch.from_numpy(features.prompt_tokens), torch.from_numpy(features.prompt_mel), speaker
        )
        normalised = functional.normalize(speaker.to(self.device, self.dtype), dim=0)
        return BlockSlotVoice(prompt, self.flow.flow.spk_embed_affine_layer(normalised))

    def open(self, voice: BlockSlotVoice) -> BlockSlotState:
        """Take a slot.

        Raises:
            CapacityError: all are taken.
        """
        return BlockSlotState(voice, self.slots.allocate(), self.pool.bytes_per_stream)

    def close(self, state: BlockSlotState) -> None:
        """Give the slot back."""
        self.slots.free(state.slot)

    def bucket(self, chunk: TokenChunk, state: BlockSlotState) -> int:
        """Return the tokens that the chunk's program has room for."""
        return self.shapes.token_bucket(self._computed(len(chunk.token_ids), chunk.is_last, state))

    def step_size(self, bucket: int, ready: int) -> int:
        """Return how many of so many chunks one step of a bucket's program should take."""
        return self.shapes.step_size(bucket, ready)

    def program(self, streams: int, tokens: int, prompt_size: int = 0) -> BucketProgram:
        """Return the program of a bucket, making it at first use; one of any other size is not kept."""
        return self._programs.get(streams, tokens, prompt_size)

    @torch.inference_mode()
    def run(self, works: Sequence[ChunkWork[BlockSlotState]]) -> list[ChunkOutcome[BlockSlotState]]:
        """Run every chunk; in the largest one's program if it has room for all, else each in its own bucket's.

        Raises:
            Token2WavError: a state was broken by a step that failed.
        """
        if any(work.state.is_broken for work in works):
            raise Token2WavError("an earlier step failed while it changed this stream; open it again")
        outcomes: dict[int, ChunkOutcome[BlockSlotState]] = {}
        computed = [self._computed(len(work.token_ids), work.is_last, work.state) for work in works]
        for indices, tokens in self.shapes.groups(computed):
            group = [works[index] for index in indices]
            for index, samples in zip(indices, self._run_group(group, tokens), strict=True):
                outcomes[index] = ChunkOutcome(samples, works[index].state)
        return [outcomes[index] for index in range(len(works))]

    def _computed(self, count: int, is_last: bool, state: BlockSlotState) -> int:
        """Return the tokens from the stream's last complete block on that a chunk of `count` tokens makes mel of."""
        hop = self.facts.new_tokens(count, is_last)
        if state.start is not None:
            return len(state.pending) + hop
        whole = len(state.voice.prompt.tokens)
        prompt = whole - self._prompts.trimmed(whole, 0 if is_last else hop)
        return prompt - self._prompts.shared_tokens(prompt) + hop

    def _run_group(self, works: Sequence[ChunkWork[BlockSlotState]], tokens: int) -> list[FloatArray]:
        begun = [self._begin(work) for work in works if work.state.start is None]
        program = self.program(self.shapes.stream_bucket(len(works)), tokens, self._prompt_size(works))
        for work in works:
            work.state.is_broken = True
        self._fill_slots(begun)
        speech = program.run(*self._inputs(works, program.streams, tokens))
        samples = [self._advance(work, row) for work, row in zip(works, speech, strict=False)]
        for work in works:
            work.state.is_broken = False
        return samples

    def _prompt_size(self, works: Sequence[ChunkWork[BlockSlotState]]) -> int:
        """Return what the solver wants these streams' prompts padded to."""
        starts = [work.state.start for work in works]
        frames = max(self._prompts.shared_tokens(start.prompt_tokens) for start in starts if start is not None)
        end = max(self._span(work).end for work in works)
        return self.flow.solver.prompt_size(self.flow.stride * frames, self.flow.stride * end)

    def _begin(self, work: ChunkWork[BlockSlotState]) -> BlockSlotState:
        """Find what a new stream starts from, which its first hop decides."""
        state = work.state
        hop = 0 if work.is_last else self.facts.new_tokens(len(work.token_ids), is_last=False)
        start = self._prompts.begin(state.voice.prompt, hop)
        state.start, state.first_token, state.end_token = start, start.first_token, start.end_token
        state.pending = tuple(start.pending.tolist())
        return state

    def _fill_slots(self, states: Sequence[BlockSlotState]) -> None:
        """Copy what streams start from into their slots."""
        pool = self.pool
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for state in states:
            assert state.start is not None
            slot, caches, mel = state.slot, state.start.caches, state.start.cond.T
            targets += [pool.solver.tails[slot], pool.lookahead_tail[slot], pool.speaker[slot]]
            sources += [self.flow.solver.place_tails(caches["solver_tail"]), caches["lookahead_tail"]]
            sources.append(state.voice.speaker)
            if pool.conformer is not None:
                targets.append(pool.conformer.upsample_tail[slot])
                sources.append(caches["upsample_tail"])
            targets.append(pool.cond[slot, : len(mel)])
            sources.append(mel)
        if targets:
            torch._foreach_copy_(targets, sources)

    def _inputs(
        self, works: Sequence[ChunkWork[BlockSlotState]], streams: int, tokens: int
    ) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """Return the batch's fields [fields, B] and tokens [B, T + 3], padded with scratch rows."""
        window = np.zeros((streams, tokens + self.flow.lookahead), np.int64)
        rows = []
        for row, work in enumerate(works):
            ids = (*work.state.pending, *work.token_ids)
            window[row, : len(ids)] = ids
            rows.append(self._row(work, len(ids)))
        # A scratch row speaks one last token into the scratch slot, without a prompt.
        rows += [BlockRow(SCRATCH_SLOT)] * (streams - len(rows))
        return np.array(rows, np.int64).T, window

    def _row(self, work: ChunkWork[BlockSlotState], num_tokens: int) -> BlockRow:
        state, stride = work.state, self.flow.stride
        assert state.start is not None
        caches, span = state.start.caches, self._span(work)
        prompts = {name: tensor.data_ptr() for name, tensor in caches.items()}
        return BlockRow(
            slot=state.slot,
            solver_prompt=prompts.get("solver_kv", 0),
            token_prompt=prompts.get("token_kv", 0),
            frame_prompt=prompts.get("frame_kv", 0),
            shared_frames=stride * self._prompts.shared_tokens(state.start.prompt_tokens),
            prompt_frames=stride * state.start.prompt_tokens,
            first=stride * span.first,
            skipped=stride * (span.start - span.first),
            committed=span.committed - span.first,
            generated=state.generated,
            num_tokens=num_tokens,
            is_last=int(work.is_last),
            seed=work.seed,
            mel_tail=state.vocoder.mel_tail,
            has_speech=int(state.vocoder.has_speech),
        )

    def _span(self, work: ChunkWork[BlockSlotState]) -> _Span:
        state, block = work.state, self.facts.hop_multiple
        end = state.end_token + self.facts.new_tokens(len(work.token_ids), work.is_last)
        return _Span(state.first_token, state.end_token, end, max(state.first_token, end // block * block))

    def _advance(self, work: ChunkWork[BlockSlotState], speech: FloatArray) -> FloatArray:
        """Move the host's half of a state on, and cut the row's samples to deliver."""
        state, span = work.state, self._span(work)
        ids = (*state.pending, *work.token_ids)
        frames = self.flow.stride * (span.end - span.start)
        state.pending = ids[span.committed - span.first : span.end - span.first]
        state.first_token, state.end_token = span.committed, span.end
        state.generated += frames
        return self.vocoder.deliver(state.vocoder, frames, speech, is_last=work.is_last)


def block_buckets(flow: BlockFlow) -> tuple[int, ...]:
    """Return the tokens of the chunks to plan for.

    One, two and four blocks; a last chunk speaks its look-ahead, too. First chunks of whole blocks find one more block
    of the prompt incomplete.
    """
    block, ahead = flow.block_tokens, flow.lookahead
    return (block, block + ahead, 2 * block, 4 * block + ahead, 5 * block + ahead)
