"""Runs batches on pools: one fixed-shape program per bucket of streams and tokens, captured as a CUDA graph.

The engine's `Runner` for GPUs, under history policy `prompt_and_recent`. States are places in the pool and change in
place. On a device without CUDA graphs the same programs run one kernel after another (for tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from token2wav_service.config import HistoryPolicy, NoiseSource, SynthesisPolicy
from token2wav_service.engine.runner import ChunkOutcome, ChunkWork, ModelFacts
from token2wav_service.errors import InvalidPromptError, Token2WavError
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import FlowState
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.bucket_program import BucketProgram, ProgramTable
from token2wav_service.runtime.slots.fused_solver import ChunkSolver, FusedSolver
from token2wav_service.runtime.slots.pool import SCRATCH_SLOT, PoolSizes, SlotPool, StreamPool, allocate_pool
from token2wav_service.runtime.slots.prompt_flow import PromptFlow
from token2wav_service.runtime.slots.slot_flow import SlotFlow, SlotRow
from token2wav_service.runtime.slots.slot_vocoder import SlotVocoder, VocoderProgress
from token2wav_service.runtime.slots.step_shapes import STREAM_BUCKETS, TOKEN_BUCKETS, StepShapes
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.types import FloatArray, TokenChunk, VoiceFeatures


@dataclass(frozen=True)
class SlotVoice:
    """A voice on the device; its keys and values are read by all of its streams where they are."""

    flow: FlowState
    """The plain state after the prompt, in the pool's dtype."""
    solver_tails: Tensor
    """[n, L, 2 convolutions, 2 cfg, 2 columns, C]."""
    speaker: Tensor
    """[80] projected speaker vector."""

    @property
    def frames(self) -> int:
        """Mel frames of the prompt."""
        return self.flow.frames

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        return self.flow.num_bytes + self.solver_tails.numel() * self.solver_tails.element_size()


@dataclass
class StreamSlot:
    """One stream's place and how far it is; changed in place by `run`."""

    voice: SlotVoice
    slot: int
    num_bytes: int
    """Bytes of the slot."""
    generated: int = 0
    vocoder: VocoderProgress = field(default_factory=VocoderProgress)
    is_broken: bool = False
    """True while a step changes the slot, and for ever if that step failed."""


class SlotRunner:
    """Holds models, pool and graphs; holds no stream."""

    def __init__(
        self,
        flow: Flow,
        hift: HiFT,
        policy: SynthesisPolicy,
        sizes: PoolSizes,
        stream_buckets: Sequence[int] = STREAM_BUCKETS,
        token_buckets: Sequence[int] = TOKEN_BUCKETS,
        solver: ChunkSolver | None = None,
        convolutions: VocoderNetwork | None = None,
    ) -> None:
        """Allocate the pool and pack the weights.

        Args:
            flow: in eval mode on its device, in the dtype to compute in.
            hift: float32, on the same device, weight norms folded; its activations are replaced by fused ones.
            policy: history must not be `upstream`, noise must be `counter`.
            sizes: room of the pool.
            stream_buckets, token_buckets: shapes to prepare programs for, ascending.
            solver: runs the estimator; None takes the fused kernels.
            convolutions: runs the vocoder's convolutions; None takes the fused kernels.

        Raises:
            ValueError: a policy this runner does not have.
        """
        if policy.history is HistoryPolicy.UPSTREAM or policy.noise is NoiseSource.UPSTREAM:
            raise ValueError("the slot runner keeps prompt and recent frames with counter noise; use runner=torch")
        self.policy = replace(policy, history=HistoryPolicy.PROMPT_AND_RECENT)
        self.sizes = sizes
        self.device = next(flow.parameters()).device
        self.dtype = next(flow.parameters()).dtype
        self.shapes = StepShapes(tuple(stream_buckets), tuple(token_buckets))
        self.pool: StreamPool = allocate_pool(
            sizes, flow.config, hift.config, policy.ode_steps, self.dtype, self.device
        )
        self.slots = SlotPool(sizes.streams)
        chosen: ChunkSolver = solver or FusedSolver(flow.decoder, policy.ode_steps, self.dtype)
        self.flow = SlotFlow(flow, chosen, self.pool, sizes.max_prompt_frames, self.shapes.token_buckets)
        self.vocoder = SlotVocoder(hift, self.policy, self.pool.vocoder, self.dtype, convolutions)
        # Plain modules prepare voices where there are no graphs to gain from, and beside other solvers.
        self._prompts: PromptFlow | StreamFlow = StreamFlow(flow, self.policy)
        if self.device.type == "cuda" and isinstance(chosen, FusedSolver):
            self._prompts = PromptFlow(flow, chosen, sizes.max_prompt_frames)
        self.facts = ModelFacts(flow.config.vocab_size, self.flow.lookahead, self.flow.stride)
        self._programs = ProgramTable(self.flow, self.vocoder, self.shapes, self.device)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile every kernel and capture every bucket, so that nothing compiles under load."""
        self._programs.prepare()
        if isinstance(self._prompts, PromptFlow):
            self._prompts.warm_up()

    @torch.inference_mode()
    def prepare_voice(self, features: VoiceFeatures) -> SlotVoice:
        """Run a voice's prompt once.

        Raises:
            InvalidPromptError: longer than the pool has room for.
        """
        if len(features.prompt_mel) > self.sizes.max_prompt_frames:
            raise InvalidPromptError(
                f"the prompt has {len(features.prompt_mel)} mel frames, this server takes "
                f"{self.sizes.max_prompt_frames} (50 a second); cut it"
            )
        speaker = torch.from_numpy(features.speaker_embedding)
        state = self._prompts.prepare_voice(
            torch.from_numpy(features.prompt_tokens), torch.from_numpy(features.prompt_mel), speaker
        )
        flow = self.flow.flow
        normalised = torch.nn.functional.normalize(speaker.to(self.device, self.dtype), dim=0)
        steps, depth, cfg, _, columns = state.solver_tail.shape
        tails = state.solver_tail.view(steps, depth, cfg, 2, -1, columns).permute(0, 1, 3, 2, 5, 4)
        return SlotVoice(state, tails.contiguous(), flow.spk_embed_affine_layer(normalised))

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
        """Return the spoken tokens that the chunk's program has room for."""
        return self.shapes.token_bucket(self._spoken(chunk))

    def step_size(self, bucket: int, ready: int) -> int:
        """Return how many of so many chunks one step of a bucket's program should take."""
        return self.shapes.step_size(bucket, ready)

    @torch.inference_mode()
    def run(self, works: Sequence[ChunkWork[StreamSlot]]) -> list[ChunkOutcome[StreamSlot]]:
        """Run every chunk; in the largest one's program if it has room for all, else each in its own bucket's.

        Raises:
            Token2WavError: a state was broken by a step that failed.
        """
        if any(work.state.is_broken for work in works):
            raise Token2WavError("an earlier step failed while it changed this stream; open it again")
        outcomes: dict[int, ChunkOutcome[StreamSlot]] = {}
        for indices, tokens in self.shapes.groups([self._spoken(work) for work in works]):
            group = [works[index] for index in indices]
            for index, samples in zip(indices, self._run_group(group, tokens), strict=True):
                outcomes[index] = ChunkOutcome(samples, works[index].state)
        return [outcomes[index] for index in range(len(works))]

    def _run_group(self, works: Sequence[ChunkWork[StreamSlot]], tokens: int) -> list[FloatArray]:
        prompt_size = self.flow.solver.prompt_size(max(work.state.voice.frames for work in works))
        program = self.program(self.shapes.stream_bucket(len(works)), tokens, prompt_size)
        for work in works:
            work.state.is_broken = True
        self._begin_streams([work.state for work in works if work.state.generated == 0])
        speech = program.run(*self._inputs(works, program.streams, tokens))
        samples = [self._advance(work, row) for work, row in zip(works, speech, strict=False)]
        for work in works:
            work.state.is_broken = False
        return samples

    def _begin_streams(self, states: Sequence[StreamSlot]) -> None:
        """Copy what a voice's streams start from into their slots."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for state in states:
            slot, voice = state.slot, state.voice
            targets += [self.pool.lookahead_tail[slot], self.pool.upsample_tail[slot]]
            targets += [self.pool.solver.tails[slot], self.pool.speaker[slot]]
            sources += [voice.flow.lookahead_tail, voice.flow.upsample_tail, voice.solver_tails, voice.speaker]
        if targets:
            torch._foreach_copy_(targets, sources)

    def _inputs(
        self, works: Sequence[ChunkWork[StreamSlot]], streams: int, tokens: int
    ) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """Return the batch's fields [FIELDS, B] and tokens [B, T + 3], padded with scratch rows."""
        window = np.zeros((streams, tokens + self.flow.lookahead), np.int64)
        for row, work in enumerate(works):
            window[row, : len(work.token_ids)] = work.token_ids
        rows = [_row(work) for work in works]
        first = rows[0]
        voice = (first.solver_prompt, first.token_prompt, first.frame_prompt, first.prompt_frames)
        # A scratch row reads the first row's voice and speaks one last token into the scratch slot.
        rows += [SlotRow(SCRATCH_SLOT, *voice)] * (streams - len(rows))
        return np.array(rows, np.int64).T, window

    def _advance(self, work: ChunkWork[StreamSlot], speech: FloatArray) -> FloatArray:
        """Move the host's half of a state on, and cut the row's samples to deliver."""
        state = work.state
        frames = self.facts.new_frames(len(work.token_ids), work.is_last)
        state.generated += frames
        return self.vocoder.deliver(state.vocoder, frames, speech, is_last=work.is_last)

    def program(self, streams: int, tokens: int, prompt_size: int = 0) -> BucketProgram:
        """Return the program of a bucket, making it at first use; one of any other size is not kept."""
        return self._programs.get(streams, tokens, prompt_size)

    def _spoken(self, chunk: ChunkWork[StreamSlot] | TokenChunk) -> int:
        return len(chunk.token_ids) - (0 if chunk.is_last else self.flow.lookahead)


def _row(work: ChunkWork[StreamSlot]) -> SlotRow:
    state, flow = work.state, work.state.voice.flow
    return SlotRow(
        slot=state.slot,
        solver_prompt=flow.solver_kv.data_ptr(),
        token_prompt=flow.token_kv.data_ptr(),
        frame_prompt=flow.frame_kv.data_ptr(),
        prompt_frames=flow.prompt_frames,
        generated=state.generated,
        num_tokens=len(work.token_ids),
        is_last=int(work.is_last),
        seed=work.seed,
        mel_tail=state.vocoder.mel_tail,
        has_speech=int(state.vocoder.has_speech),
    )
