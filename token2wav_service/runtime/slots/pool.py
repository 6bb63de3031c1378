"""The memory of all streams on a device, one slot a stream, allocated once; each slot's owner; the rows of a step.

Rings keep the newest frames that are a stream's own; the prompt's, which a voice's streams share, are not here. Times
count in mel frames (50 Hz) or tokens (25 Hz) from the prompt's start.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from token2wav_service.errors import CapacityError
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.runtime.slots.chunk_solver import SolverPool

SCRATCH_SLOT = 0
"""Slot that padding rows of a batch use; it is never given to a stream."""


class SlotPool:
    """Slots 1..count, each held by one stream at most; thread-safe."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._free = list(range(count, 0, -1))
        self._held: set[int] = set()

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


@dataclass(frozen=True)
class PoolSizes:
    """The number and sizes of streams that the pool has room for."""

    streams: int
    estimator_recent: int
    """Newest mel frames kept for the estimator; of a block-masked flow for the conformer too, in whole blocks."""
    conformer_recent: int
    """Newest mel frames kept for Step-Audio2's conformer, an even number."""
    max_prompt_frames: int
    """Mel frames of the longest prompt."""

    def rings(self, flow: AnyFlow) -> tuple[int, int]:
        """Return the frames of the estimator's rings and of the conformer's.

        Raises:
            ValueError: no frames at all.
        """
        if self.estimator_recent < 1:
            raise ValueError("got estimator_recent_frames 0, expected at least 1 on a GPU; or use runner=torch")
        if not flow.block_tokens:
            return self.estimator_recent, self.conformer_recent
        block = flow.block_tokens * flow.stride
        ring = -(-self.estimator_recent // block) * block
        return ring, ring


@dataclass(frozen=True)
class SlotBatch:
    """The rows of this step: their slots, prompts and lengths; every tensor [B] int64 on the device."""

    slots: Tensor
    solver_prompts: Tensor
    """Addresses of the shared prompts' solver keys and values, each [n, L, 2, H, P, 2D]."""
    token_prompts: Tensor
    """Addresses of the conformer blocks' prompt keys and values, each [L1, h, P/2, 2d]; 0 without a conformer."""
    frame_prompts: Tensor
    """Addresses of the up-blocks' prompt keys and values, each [L2, h, P, 2d]; 0 without a conformer."""
    shared_frames: Tensor
    """P: mel frames of the prompt that the voice's streams share: its complete blocks, or all."""
    prompt_frames: Tensor
    """Mel frames of the prompt."""
    first_frames: Tensor
    """A: position of the chunk's first frame, after the last complete block."""
    skipped: Tensor
    """Mel frames at the chunk's start that were given out before, or are the prompt's."""
    committed: Tensor
    """Tokens of the chunk whose blocks are complete after it; without a block mask, all that it speaks."""
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


BATCH_FIELDS = tuple(field.name for field in dataclasses.fields(SlotBatch))
SCRATCH_ROW = {"slots": SCRATCH_SLOT, "num_tokens": 1, "is_last": 1}
"""A row that is nobody's: it speaks one last token into the scratch slot, without a prompt. Other fields are 0."""


@dataclass(frozen=True)
class ConformerPool:
    """What the encoder keeps of streams; first axis S is the slot."""

    token_window: Tensor
    """[S, L1, h, W/2, 2d]."""
    frame_window: Tensor
    """[S, L2, h, W, 2d]."""
    upsample_tail: Tensor
    """[S, C, 4]."""


@dataclass(frozen=True)
class StreamPool:
    """State of streams; first axis S is the slot. Rings hold frame f of a stream at place f mod W."""

    solver: SolverPool
    """Solver's history, allocated by the flow's solver."""
    conformer: ConformerPool | None
    """None without a conformer."""
    lookahead_tail: Tensor
    """[S, C, 2]."""
    speaker: Tensor
    """[S, 80] projected speaker vector."""
    cond: Tensor | None
    """[S, K, 80] the prompt's mel behind its shared blocks; None where prompts are shared whole."""
    vocoder: Any
    """State of the vocoder, allocated by it."""

    @property
    def bytes_per_stream(self) -> int:
        """Memory of one slot."""
        return pool_bytes(self) // len(self.speaker)


def pool_tensors(pool: object) -> list[Tensor]:
    """Return every tensor of a pool and of the pools inside it."""
    values = list(vars(pool).values())
    inner = [value for value in values if dataclasses.is_dataclass(value)]
    return [value for value in values if isinstance(value, Tensor)] + [t for one in inner for t in pool_tensors(one)]


def pool_bytes(pool: object) -> int:
    """Return the memory of all slots."""
    return sum(tensor.numel() * tensor.element_size() for tensor in pool_tensors(pool))


def allocate_pool(flow: AnyFlow, solver: SolverPool, vocoder: Any, slots: int, conformer_ring: int) -> StreamPool:
    """Allocate the rest of a pool, zeroed: rings are read before they are full.

    Args:
        flow: on its device, in the dtype to compute in.
        solver: what the solver allocated.
        vocoder: what the vocoder allocated.
        slots: S.
        conformer_ring: W, mel frames.
    """
    shapes = {spec.name: spec.shape for spec in flow.state_specs(1)}

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(slots, *shape, dtype=flow.dtype, device=flow.device)

    conformer = cond = None
    if "token_kv" in shapes:
        (blocks, heads, _, kv), up_blocks = shapes["token_kv"], shapes["frame_kv"][0]
        conformer = ConformerPool(
            zeros(blocks, heads, conformer_ring // flow.stride, kv),
            zeros(up_blocks, heads, conformer_ring, kv),
            zeros(*shapes["upsample_tail"]),
        )
    if flow.block_tokens:
        # A prompt's last tokens that are not shared: less than a block and the look-ahead.
        waiting = flow.stride * (flow.block_tokens + flow.lookahead)
        cond = torch.zeros(slots, waiting, flow.output_size, device=flow.device)
    lookahead, speaker = zeros(*shapes["lookahead_tail"]), zeros(flow.output_size)
    return StreamPool(solver, conformer, lookahead, speaker, cond, vocoder)
