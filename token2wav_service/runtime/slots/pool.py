"""The memory of all streams on a device: one place a stream, allocated once.

A voice's own keys and values are not here: `SlotVoice` holds them once, and every stream of the voice reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.vocoder_stream import OVERLAP_FRAMES
from token2wav_service.runtime.slots.fused_solver import CONVOLUTIONS, SolverPool


@dataclass(frozen=True)
class PoolSizes:
    """What the pool has room for."""

    streams: int
    estimator_recent: int
    """Newest mel frames kept for the DiT."""
    conformer_recent: int
    """Newest mel frames kept for the conformer, an even number."""
    max_prompt_frames: int
    """Longest prompt, mel frames."""


@dataclass(frozen=True)
class StreamPool:
    """State of streams; first axis S is the slot. Rings hold frame f of a stream at place f mod W."""

    solver: SolverPool
    token_window: Tensor
    """[S, L1, h, W/2, 2d] conformer blocks."""
    frame_window: Tensor
    """[S, L2, h, W, 2d] conformer up-blocks."""
    lookahead_tail: Tensor
    """[S, C, 2]."""
    upsample_tail: Tensor
    """[S, C, 4]."""
    speaker: Tensor
    """[S, 80] projected speaker vector."""
    mel_tail: Tensor
    """[S, 80, 8] float32, left aligned."""
    source_tail: Tensor
    """[S, 3840] float32."""
    speech_tail: Tensor
    """[S, 3840] float32."""
    phase: Tensor
    """[S, H] float32."""

    @property
    def bytes_per_stream(self) -> int:
        """Memory of one slot."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        tensors += [self.solver.window, self.solver.tails]
        return sum(t[0].numel() * t.element_size() for t in tensors)


def allocate_pool(
    sizes: PoolSizes, flow: FlowConfig, hift: HiFTConfig, steps: int, dtype: torch.dtype, device: torch.device
) -> StreamPool:
    """Allocate a pool, zeroed: rings are read before they are full."""
    slots = sizes.streams + 1
    dit, encoder = flow.estimator, flow.encoder
    overlap = OVERLAP_FRAMES * hift.frame_samples

    def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(slots, *shape, dtype=kind, device=device)

    kv, heads = 2 * encoder.head_dim, encoder.attention_heads
    return StreamPool(
        solver=SolverPool(
            window=zeros(steps, dit.depth, 2, dit.num_heads, sizes.estimator_recent, 2 * dit.head_dim),
            tails=zeros(steps, dit.depth, CONVOLUTIONS, 2, 2, dit.hidden_size),
        ),
        token_window=zeros(encoder.num_blocks, heads, sizes.conformer_recent // encoder.up_stride, kv),
        frame_window=zeros(encoder.num_up_blocks, heads, sizes.conformer_recent, kv),
        lookahead_tail=zeros(encoder.output_size, 2),
        upsample_tail=zeros(encoder.output_size, 4),
        speaker=zeros(flow.output_size),
        mel_tail=zeros(flow.output_size, OVERLAP_FRAMES, kind=torch.float32),
        source_tail=zeros(overlap, kind=torch.float32),
        speech_tail=zeros(overlap, kind=torch.float32),
        phase=zeros(hift.nb_harmonics + 1, kind=torch.float32),
    )
