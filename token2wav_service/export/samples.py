"""Seeded inputs for a graph at given sizes: rows of different lengths and histories, anything in the padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from token2wav_service.graphs.spec import DType, GraphSpec, TensorSpec

SMALLEST_VOCABULARY = 512
"""Bound of the random token ids, whatever the model's vocabulary."""
LATEST_FRAME = 15_000
"""Bound of the random positions: 300 s."""
_FLOATS = {DType.FLOAT32: torch.float32, DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16}


def sample_inputs(spec: GraphSpec, sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
    """Draw inputs by name, in the description's order.

    Args:
        sizes: of every axis of the inputs.
        seed: equal seeds and sizes give equal values, up to rounding to the graph's precision.
    """
    generator = torch.Generator().manual_seed(seed)
    return {tensor.name: _draw(tensor, sizes, generator) for tensor in spec.inputs}


def _draw(tensor: TensorSpec, sizes: Mapping[str, int], generator: Generator) -> Tensor:
    shape = tensor.shape(sizes)
    if tensor.name in _SPECIAL:
        return _SPECIAL[tensor.name](shape, sizes, generator)
    if tensor.dtype is DType.BOOL:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randn(shape, generator=generator).to(_FLOATS[tensor.dtype])


def _lengths(shape: tuple[int, ...], sizes: Mapping[str, int], generator: Generator) -> Tensor:
    """From one token or frame to all, and the look-ahead where a row is not last; the first row is full."""
    longest = next(sizes[axis] for axis in _LENGTH_AXES if axis in sizes)
    lengths = torch.randint(1, longest + 1, shape, generator=generator)
    lengths[0] = longest
    lookahead = sizes["chunk_tokens"] - sizes["spoken_tokens"] if "spoken_tokens" in sizes else 0
    return lengths + lookahead * ~_is_last(shape[0])


def _is_last(rows: int) -> Tensor:
    """Every other row, so that a batch has both kinds."""
    return torch.arange(rows) % 2 == 1


def _committed(shape: tuple[int, ...], sizes: Mapping[str, int], generator: Generator) -> Tensor:
    """From none of the chunk's tokens or frames to all."""
    longest = next(sizes[axis] for axis in _LENGTH_AXES if axis in sizes)
    return torch.randint(0, longest + 1, shape, generator=generator)


def _history(axis: str) -> Callable[[tuple[int, ...], Mapping[str, int], Generator], Tensor]:
    """Return a draw of lengths from nothing to all of an axis."""
    return lambda shape, sizes, generator: torch.randint(0, sizes[axis] + 1, shape, generator=generator)


_LENGTH_AXES = ("spoken_tokens", "whole_tokens", "mel_frames", "chunk_frames", "whole_frames")
"""Axes that `lengths` may count, in this order: the first one that a graph has."""
_SPECIAL: dict[str, Callable[[tuple[int, ...], Mapping[str, int], Generator], Tensor]] = {
    "lengths": _lengths,
    "committed": _committed,
    "first_frames": lambda shape, _, generator: torch.randint(0, LATEST_FRAME, shape, generator=generator),
    "is_last": lambda shape, _, generator: _is_last(shape[0]),
    "token_lengths": _history("history_tokens"),
    "frame_lengths": _history("history_frames"),
    "tokens": lambda shape, _, generator: torch.randint(0, SMALLEST_VOCABULARY, shape, generator=generator),
    "prompt_row": lambda shape, sizes, generator: torch.randint(0, sizes["prompt_rows"], shape, generator=generator),
    "time": lambda shape, _, generator: torch.rand(shape, generator=generator),
}
