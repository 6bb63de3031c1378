"""The inputs and methods that flows and vocoders of all families share when they run in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
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


class ChunkedFlow(Protocol):
    """Tokens to mel. A prompt is shared by a voice's streams and never changed; prompts and states know `num_bytes`."""

    device: torch.device
    stride: int
    """Mel frames for every token."""
    lookahead: int
    """Tokens that a chunk needs beyond those it speaks."""
    hop_multiple: int
    """Chunks but the first and the last should speak a multiple of so many tokens."""

    @property
    def vocab_size(self) -> int: ...

    def prepare_voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> Any:
        """Run a prompt once: tokens [T] int64, mel [F, 80], speaker [192]; `frames` of the result are the mel's."""
        ...

    def begin(self, prompt: Any, hop: int) -> Any:
        """Return what a stream starts from whose first chunk speaks `hop` tokens; 0 if that chunk is the last, too."""
        ...

    def forward(self, rows: Sequence[FlowInput[Any]]) -> tuple[list[Tensor], list[Any]]:
        """Return each row's mel [80, F] float32 and new state; the input states are unchanged."""
        ...


class ChunkedVocoder(Protocol):
    """Mel to audio."""

    def initial_state(self) -> Any:
        """Return the state of a stream that has not begun."""
        ...

    def vocode(self, rows: Sequence[VocoderInput[Any]]) -> tuple[list[Tensor], list[Any]]:
        """Return each row's samples [n] float32 (none while it has too few frames) and new state."""
        ...
