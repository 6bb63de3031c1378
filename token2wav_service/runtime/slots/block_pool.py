"""The memory of all streams of a block-masked flow, one place a stream, allocated once; and the rows of a step.

Rings keep the newest complete blocks that are a stream's own; the prompt's blocks that a voice's streams share are not
here. Times count in mel frames (50 Hz) or tokens (25 Hz) from the prompt's start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from token2wav_service.models.flow.block_flow import BlockFlow, CosyVoice2Flow
from token2wav_service.runtime.slots.fused_solver import SolverPool
from token2wav_service.runtime.slots.pool import pool_bytes


@dataclass(frozen=True)
class BlockPoolSizes:
    """What the pool has room for."""

    streams: int
    recent_frames: int
    """Newest mel frames kept beside the prompt's; rounded up to whole blocks."""
    max_prompt_frames: int
    """Mel frames of the longest prompt."""


@dataclass(frozen=True)
class BlockBatch:
    """The rows of this step: their slots, prompts and lengths; every tensor [B] int64 on the device."""

    slots: Tensor
    solver_prompts: Tensor
    """Addresses of the shared prompts' solver keys and values, each [n, L, 2, H, P, 2D]."""
    token_prompts: Tensor
    """Addresses of the conformer blocks' prompt keys and values, each [L1, h, P/2, 2d]; 0 without a conformer."""
    frame_prompts: Tensor
    """Addresses of the up-blocks' prompt keys and values, each [L2, h, P, 2d]; 0 without a conformer."""
    shared_frames: Tensor
    """P: mel frames of the prompt's blocks that the voice's streams share."""
    prompt_frames: Tensor
    """Mel frames of the prompt."""
    first_frames: Tensor
    """A: position of the chunk's first frame, after the last complete block."""
    skipped: Tensor
    """Mel frames at the chunk's start that were given out before, or are the prompt's."""
    committed: Tensor
    """Tokens of the chunk whose blocks are complete after it."""
    generated: Tensor
    """Mel frames of each stream that were given out before this chunk."""
    num_tokens: Tensor
    """Valid tokens of the chunk, look-ahead included."""
    is_last: Tensor
    """1 for a stream's last chunk, else 0."""
    seeds: Tensor
    mel_tails: Tensor
    """Mel frames that the vocoder keeps."""
    has_speech: Tensor
    """1 if the vocoder has run before, else 0."""


class BlockRow(NamedTuple):
    """One stream's entry in a `BlockBatch`, in the order of its fields; the defaults speak one last token."""

    slot: int
    solver_prompt: int = 0
    token_prompt: int = 0
    frame_prompt: int = 0
    shared_frames: int = 0
    prompt_frames: int = 0
    first: int = 0
    skipped: int = 0
    committed: int = 0
    generated: int = 0
    num_tokens: int = 1
    is_last: int = 1
    seed: int = 0
    mel_tail: int = 0
    has_speech: int = 0


@dataclass(frozen=True)
class ConformerPool:
    """CosyVoice2's encoder; first axis S is the slot."""

    token_window: Tensor
    """[S, L1, h, W/2, 2d]."""
    frame_window: Tensor
    """[S, L2, h, W, 2d]."""
    upsample_tail: Tensor
    """[S, C, 4]."""


@dataclass(frozen=True)
class BlockStreamPool:
    """State of streams."""

    slots: int
    """S: number of slots, the scratch slot included."""
    solver: SolverPool
    """Solver's history, allocated by the flow's solver."""
    conformer: ConformerPool | None
    lookahead_tail: Tensor
    """[S, C, 2]."""
    speaker: Tensor
    """[S, 80] projected speaker vector."""
    cond: Tensor
    """[S, K, 80] the prompt's mel behind its shared blocks."""
    vocoder: Any
    """State of the vocoder, allocated by it."""

    @property
    def bytes_per_stream(self) -> int:
        """Memory of one slot."""
        return pool_bytes(self) // self.slots


def ring_frames(flow: BlockFlow, recent_frames: int) -> int:
    """Return W: `recent_frames` rounded up to whole blocks.

    Raises:
        ValueError: no frames at all.
    """
    if recent_frames < 1:
        raise ValueError("got estimator_recent_frames 0, expected at least 1 on a GPU; or use runner=torch")
    block = flow.block_tokens * flow.stride
    return -(-recent_frames // block) * block


def allocate_block_pool(flow: BlockFlow, solver: SolverPool, vocoder: Any, slots: int, ring: int) -> BlockStreamPool:
    """Allocate the rest of a pool, zeroed.

    Args:
        flow: on its device, in the dtype to compute in.
        solver: what the solver allocated.
        vocoder: what the vocoder allocated.
        slots: S.
        ring: W, mel frames.
    """
    like = flow.spk_embed_affine_layer.weight

    def zeros(*shape: int) -> Tensor:
        return like.new_zeros(slots, *shape)

    conformer = None
    if isinstance(flow, CosyVoice2Flow):
        e = flow.config.encoder
        kv = 2 * e.head_dim
        conformer = ConformerPool(
            zeros(e.num_blocks, e.attention_heads, ring // flow.stride, kv),
            zeros(e.num_up_blocks, e.attention_heads, ring, kv),
            zeros(e.output_size, flow.encoder.UPSAMPLE_CONTEXT),
        )
    tail = next(spec for spec in flow.state_specs(1) if spec.name == "lookahead_tail")
    # A prompt's last tokens that are not shared: less than a block and the look-ahead.
    waiting = flow.stride * (flow.block_tokens + flow.lookahead)
    return BlockStreamPool(
        slots=slots,
        solver=solver,
        conformer=conformer,
        lookahead_tail=zeros(*tail.shape),
        speaker=zeros(flow.output_size),
        cond=torch.zeros(slots, waiting, flow.output_size, device=like.device),
        vocoder=vocoder,
    )
