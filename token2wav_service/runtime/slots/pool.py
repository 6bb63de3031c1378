"""The memory of all streams on a device: one slot a stream, allocated once; and the owner of each slot.

A voice's own keys and values are not here: `SlotVoice` holds them once, and every stream of the voice reads them.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.errors import CapacityError
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES
from token2wav_service.runtime.slots.fused_solver import CONVOLUTIONS, SolverPool

SCRATCH_SLOT = 0
"""Slot that padding rows of a batch use; it is never given to a stream."""


class SlotPool:
    """Slots 1..count, each held by one stream at most; thread-safe."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._free = list(range(count, 0, -1))
        self._held: set[int] = set()

    @property
    def num_free(self) -> int:
        """Slots that can be handed out now."""
        with self._lock:
            return len(self._free)

    def allocate(self) -> int:
        """Take a slot.

        Raises:
            CapacityError: all are held.
        """
        with self._lock:
            if not self._free:
                raise CapacityError(f"all {self._count} stream slots are in use; retry when a stream has ended")
            slot = self._free.pop()
            self._held.add(slot)
            return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            assert slot in self._held, "free without allocate"
            self._held.remove(slot)
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError if slots were lost or doubled; for tests and idle moments."""
        with self._lock:
            assert sorted([*self._free, *self._held]) == list(range(1, self._count + 1))


@dataclass(frozen=True)
class PoolSizes:
    """The number and sizes of streams that the pool has room for."""

    streams: int
    estimator_recent: int
    """Newest mel frames kept for the DiT."""
    conformer_recent: int
    """Newest mel frames kept for the conformer, an even number."""
    max_prompt_frames: int
    """Mel frames of the longest prompt."""


@dataclass(frozen=True)
class VocoderPool:
    """What HiFT keeps of streams; first axis S is the slot."""

    mel_tail: Tensor
    """[S, 80, 8] float32, left aligned."""
    source_tail: Tensor
    """[S, 3840] float32."""
    speech_tail: Tensor
    """[S, 3840] float32."""
    phase: Tensor
    """[S, H] float32."""


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
    vocoder: VocoderPool

    @property
    def bytes_per_stream(self) -> int:
        """Memory of one slot."""
        return sum(tensor[0].numel() * tensor.element_size() for tensor in pool_tensors(self))


def pool_tensors(pool: object) -> list[Tensor]:
    """Return every tensor of a pool and of the pools inside it."""
    values = list(vars(pool).values())
    inner = [value for value in values if dataclasses.is_dataclass(value)]
    return [value for value in values if isinstance(value, Tensor)] + [t for one in inner for t in pool_tensors(one)]


def pool_bytes(pool: object) -> int:
    """Return the memory of all slots."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pool_tensors(pool))


def allocate_vocoder(slots: int, hift: HiFTConfig, device: torch.device) -> VocoderPool:
    """Allocate HiFT's part of a pool, zeroed."""
    overlap = OVERLAP_FRAMES * hift.frame_samples

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(slots, *shape, device=device)

    return VocoderPool(
        zeros(hift.in_channels, OVERLAP_FRAMES), zeros(overlap), zeros(overlap), zeros(hift.nb_harmonics + 1)
    )


def allocate_pool(
    sizes: PoolSizes, flow: FlowConfig, hift: HiFTConfig, steps: int, dtype: torch.dtype, device: torch.device
) -> StreamPool:
    """Allocate a pool, zeroed: rings are read before they are full."""
    slots = sizes.streams + 1
    dit, encoder = flow.estimator, flow.encoder

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(slots, *shape, dtype=dtype, device=device)

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
        vocoder=allocate_vocoder(slots, hift, device),
    )
