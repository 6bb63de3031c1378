"""A graph in a TensorRT engine: tensors for every planned size, and contexts bound to them.

It knows the sizes of the graphs `estimator_chunk` and `vocoder`; it knows nothing of the solver or of streams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs.spec import GraphSpec, TensorSpec
from token2wav_service.runtime.tensorrt.api import TensorRTEngine
from token2wav_service.runtime.tensorrt.contexts import (
    BoundContext,
    activation_memory,
    is_held,
    new_context,
    torch_dtype,
)


class PlannedSizes(Protocol):
    """One shape of a graph; hashable."""

    def axes(self) -> dict[str, int]:
        """Return the sizes of the graph's axes, but for those that follow from them."""
        ...


S = TypeVar("S", bound=PlannedSizes)


@dataclass(frozen=True)
class EstimatorSizes:
    """One shape of `estimator_chunk`: the estimator at one solver step."""

    streams: int
    chunk_frames: int
    prompt_frames: int
    """Columns that all prompts are padded to."""
    window_frames: int

    def axes(self) -> dict[str, int]:
        """Return the sizes of the graph's axes; every stream has rows of its own for its voice's prompt."""
        rows = 2 * self.streams
        return {
            "rows": rows,
            "prompt_rows": rows,
            "chunk_frames": self.chunk_frames,
            "prompt_frames": self.prompt_frames,
            "window_frames": self.window_frames,
        }


@dataclass(frozen=True)
class VocoderSizes:
    """One shape of `vocoder`: its convolutions."""

    streams: int
    columns: int
    """Mel frames that come in, with those of the chunk before and those to look ahead into."""

    def axes(self) -> dict[str, int]:
        """See `PlannedSizes.axes`."""
        return {"streams": self.streams, "mel_frames": self.columns, "mel_columns": self.columns}


class PlannedEngine(Generic[S]):
    """Runs the engine; allocates nothing once it is made, but contexts at the first use of a size.

    All sizes share one memory for each tensor, so one of them computes at a time.
    """

    def __init__(self, engine: TensorRTEngine, spec: GraphSpec, planned: Sequence[S], device: torch.device) -> None:
        """Check the engine and allocate its tensors.

        Args:
            spec: of the graph, for these models.
            planned: sizes to be ready for; those that no profile holds are left out.

        Raises:
            EngineUnfitError: the engine is of another graph, or holds none of the sizes.
        """
        _check_graph(engine, spec)
        self._engine, self._spec, self._device = engine, spec, device
        self.names = frozenset(tensor.name for tensor in spec.inputs)
        """Inputs of the graph."""
        self.sizes = frozenset(sizes for sizes in planned if is_held(engine.profiles, self._input_shapes(sizes)))
        if not self.sizes:
            raise EngineUnfitError(f"the engine's profiles hold none of the planned sizes, such as {planned[0]}")
        self._memory = {tensor.name: self._allocate(tensor) for tensor in (*spec.inputs, *spec.outputs)}
        self._activations = activation_memory(engine, device)
        self._bound: dict[S, BoundContext] = {}

    def bind(self, sizes: S) -> BoundContext:
        """Return the context of a planned size; the first call makes it, so it must not happen in a graph capture."""
        assert sizes in self.sizes, "only planned sizes have memory"
        if sizes not in self._bound:
            context = new_context(self._engine, self._activations)
            self._bound[sizes] = BoundContext(self._engine, context, self._tensors(sizes))
        return self._bound[sizes]

    def _input_shapes(self, sizes: S) -> dict[str, tuple[int, ...]]:
        axes = self._spec.complete(sizes.axes())
        return {tensor.name: tensor.shape(axes) for tensor in self._spec.inputs}

    def _allocate(self, tensor: TensorSpec) -> Tensor:
        count = max(math.prod(tensor.shape(self._spec.complete(sizes.axes()))) for sizes in self.sizes)
        # Zeros: what a mask rules out may hold any finite value.
        return torch.zeros(count, dtype=torch_dtype(tensor.dtype.value), device=self._device)

    def _tensors(self, sizes: S) -> dict[str, Tensor]:
        views, axes = {}, self._spec.complete(sizes.axes())
        for tensor in (*self._spec.inputs, *self._spec.outputs):
            shape = tensor.shape(axes)
            views[tensor.name] = self._memory[tensor.name][: math.prod(shape)].view(shape)
        return views


def _check_graph(engine: TensorRTEngine, spec: GraphSpec) -> None:
    expected = {tensor.name: tensor.dtype.value for tensor in (*spec.inputs, *spec.outputs)}
    got = {tensor.name: tensor.dtype for tensor in engine.tensors.values()}
    if got != expected:
        raise EngineUnfitError(f"the engine has tensors {got}, expected {expected}; export and build it again")
