"""Tokens to mel for streams whose state lives in slots; fit to be captured as a CUDA graph.

What `models/flow/flow.py` computes under history policy `prompt_and_recent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor
from torch.nn import functional

from token2wav_service.models.causal import valid_mask
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.fused_encoder import EncoderTails, FusedEncoder
from token2wav_service.runtime.slots.fused_solver import ChunkSolver, SolverBatch
from token2wav_service.runtime.slots.pool import StreamPool


@dataclass(frozen=True)
class SlotBatch:
    """The rows of this step: their slots, prompts and lengths; every tensor [B] int64 on the device."""

    slots: Tensor
    solver_prompts: Tensor
    """Addresses of the voices' solver keys and values, each [n, L, 2, H, P, 2D]."""
    token_prompts: Tensor
    """Addresses of the conformer blocks' prompt keys and values, each [L1, h, P/2, 2d]."""
    frame_prompts: Tensor
    """Addresses of the up-blocks' prompt keys and values, each [L2, h, P, 2d]."""
    prompt_frames: Tensor
    """P, the mel frames of each prompt, even."""
    generated: Tensor
    """Mel frames of each stream before this chunk."""
    num_tokens: Tensor
    """Valid tokens of the chunk, look-ahead included."""
    is_last: Tensor
    """1 for a stream's last chunk, else 0."""
    seeds: Tensor
    mel_tails: Tensor
    """Mel frames in the vocoder's tail, 0..8."""
    has_speech: Tensor
    """1 if the vocoder has run before, else 0."""


class SlotRow(NamedTuple):
    """One stream's entry in a `SlotBatch`, in the order of its fields; the defaults speak one last token."""

    slot: int
    solver_prompt: int
    token_prompt: int
    frame_prompt: int
    prompt_frames: int
    generated: int = 0
    num_tokens: int = 1
    is_last: int = 1
    seed: int = 0
    mel_tail: int = 0
    has_speech: int = 0


class SlotFlow:
    """Runs the flow on a pool; holds the models, no stream."""

    batch_type: ClassVar[type[SlotBatch]] = SlotBatch

    def __init__(
        self, flow: Flow, solver: ChunkSolver, pool: StreamPool, max_prompt_frames: int, token_buckets: Sequence[int]
    ) -> None:
        """Pack the encoder's weights.

        Args:
            flow: in eval mode, on its device.
            solver: runs the estimator.
            pool: states.
            max_prompt_frames: longest prompt.
            token_buckets: spoken tokens of the chunks that are planned for.
        """
        self.flow, self.solver, self.pool = flow, solver, pool
        self.encoder = FusedEncoder(flow.encoder, max_prompt_frames, token_buckets)
        self.stride = flow.config.encoder.up_stride
        self.lookahead = flow.config.encoder.pre_lookahead_len

    def prompt_sizes(self) -> tuple[int, ...]:
        """Return what the solver wants prompts padded to."""
        return self.solver.prompt_sizes

    def frame_lengths(self, batch: SlotBatch) -> Tensor:
        """Return [B] mel frames that each row makes."""
        return self.stride * (batch.num_tokens - self.lookahead * (1 - batch.is_last))

    def run(self, tokens: Tensor, batch: SlotBatch, prompt_size: int = 0) -> Tensor:
        """Run one chunk of every row and keep what the next needs.

        Args:
            tokens: [B, T + 3] int64, padded; T spoken tokens at most.
            prompt_size: what the solver pads prompts to.

        Returns:
            Mel [B, 2T, 80] float32; frames past a row's length are meaningless.
        """
        frames = self.frame_lengths(batch)
        mu = self._encode(tokens, batch, frames)
        size, mel = mu.shape[1], self.flow.config.output_size
        start = batch.prompt_frames + batch.generated
        noise = ops.counter_noise(batch.seeds, start, size, mel, int(NoiseDomain.FLOW))
        solving = SolverBatch(
            batch.slots, batch.solver_prompts, batch.prompt_frames, batch.generated, frames, prompt_size
        )
        pool = self.pool.solver
        speaker = self.pool.speaker.index_select(0, batch.slots)
        x, own, tails = self.solver.solve(noise, mu, speaker, None, solving, pool)
        ops.commit_window(own, pool.window, batch.slots, batch.generated, frames)
        pool.tails.index_copy_(0, batch.slots, tails)
        return x

    def _encode(self, tokens: Tensor, batch: SlotBatch, frames: Tensor) -> Tensor:
        """Return mu [B, 2T, 80]."""
        stride, pool, slots = self.stride, self.pool, batch.slots
        spoken = frames // stride
        at_tokens = KeyPlaces(
            slots, batch.token_prompts, batch.prompt_frames // stride, batch.generated // stride, spoken
        )
        at_frames = KeyPlaces(slots, batch.frame_prompts, batch.prompt_frames, batch.generated, frames)
        return encode_tokens(
            self.flow, self.encoder, tokens, batch.num_tokens, spoken, (at_tokens, at_frames),
            (pool.token_window, pool.frame_window), EncoderTails(pool.lookahead_tail, pool.upsample_tail),
        )  # fmt: skip


def encode_tokens(
    flow: Flow,
    encoder: FusedEncoder,
    tokens: Tensor,
    num_tokens: Tensor,
    spoken: Tensor,
    places: tuple[KeyPlaces, KeyPlaces],
    windows: tuple[Tensor, Tensor],
    tails: EncoderTails,
) -> Tensor:
    """Turn tokens [B, T + 3] int64 into what the solver is conditioned on, mu [B, 2T, 80].

    Args:
        flow: embeds the tokens, and projects what the encoder makes of them.
        encoder: its encoder.
        tokens: padded.
        num_tokens, spoken, places, windows, tails: as `FusedEncoder.encode` takes them.
    """
    embedded = flow.input_embedding(tokens)
    embedded = embedded * valid_mask(num_tokens, tokens.shape[1])[:, :, None].to(embedded.dtype)
    hidden = encoder.encode(embedded, num_tokens, spoken, places, windows, tails)
    return functional.linear(hidden, flow.encoder_proj.weight, flow.encoder_proj.bias)
