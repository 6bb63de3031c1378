"""Seeded inputs for a graph at given sizes: rows of different lengths and histories, anything in the padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from token2wav_service.graphs.spec import DType, GraphSpec, TensorSpec

LATEST_FRAME = 15_000
"""Bound of the random positions: 300 s."""
_FLOATS = {DType.FLOAT32: torch.float32, DType.FLOAT16: torch.float16}


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


def _longest(sizes: Mapping[str, int]) -> int:
    return next(sizes[axis] for axis in ("mel_frames", "chunk_frames") if axis in sizes)


def _lengths(shape: tuple[int, ...], sizes: Mapping[str, int], generator: Generator) -> Tensor:
    """From one frame to all; the first row is full."""
    lengths = torch.randint(1, _longest(sizes) + 1, shape, generator=generator)
    lengths[0] = _longest(sizes)
    return lengths


_SPECIAL: dict[str, Callable[[tuple[int, ...], Mapping[str, int], Generator], Tensor]] = {
    "lengths": _lengths,
    "committed": lambda shape, sizes, generator: torch.randint(0, _longest(sizes) + 1, shape, generator=generator),
    "first_frames": lambda shape, _, generator: torch.randint(0, LATEST_FRAME, shape, generator=generator),
    "prompt_row": lambda shape, sizes, generator: torch.randint(0, sizes["prompt_rows"], shape, generator=generator),
    "time": lambda shape, _, generator: torch.rand(shape, generator=generator),
}
