"""The inputs that flows and vocoders of all families share when they run in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

S = TypeVar("S")


@dataclass(frozen=True)
class FlowInput(Generic[S]):
    """One stream's part of a batch of token chunks."""

    state: S
    token_ids: Tensor
    """[N] int64; unless last, the final 3 are look-ahead."""
    speaker: Tensor
    """[192] raw speaker embedding."""
    seed: int
    is_last: bool


@dataclass(frozen=True)
class VocoderInput(Generic[S]):
    """One stream's part of a batch of mel chunks."""

    state: S
    mel: Tensor
    """[80, F] new frames, float32; none are needed in a last call whose state holds some."""
    seed: int
    is_last: bool


@dataclass(frozen=True)
class CacheSpec:
    """One tensor of a stream's state."""

    name: str
    shape: tuple[int, ...]
    """Shape without a batch; 0 on the time axis."""
    batch_axis: int
    """Position of the batch's axis in the tensor of many streams."""
    time_axis: int | None = None
    """Axis of `shape` that grows, time ascending; None where the size is fixed."""
    columns_per_token: int = 0
    """Columns of the time axis for every token (25 Hz)."""


def empty_caches(specs: Sequence[CacheSpec], like: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a batch of streams that have not begun, shaped as `like` [B, ...]."""
    rows = len(like)
    shapes = {spec.name: (*spec.shape[: spec.batch_axis], rows, *spec.shape[spec.batch_axis :]) for spec in specs}
    return {name: like.new_zeros(shape) for name, shape in shapes.items()}
