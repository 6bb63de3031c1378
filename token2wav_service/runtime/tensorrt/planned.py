"""A graph in a TensorRT engine: tensors for every planned size, and execution contexts bound to them.

A context is bound once for one set of sizes; a captured CUDA graph holds addresses of its context's state. It knows the
sizes of the graphs `estimator_chunk` and `vocoder`; it knows nothing of the solver or of streams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs.spec import GraphSpec, ShapeRange, TensorSpec
from token2wav_service.runtime.tensorrt.api import Context, Shape, TensorRTEngine

ALIGNMENT_BYTES = 256
"""Alignment of activation memory, as TensorRT asks for."""


def activation_memory(engine: TensorRTEngine, device: torch.device) -> Tensor:
    """Allocate the memory that an engine's contexts share: many may be bound, one computes at a time."""
    return torch.empty(engine.activation_bytes + ALIGNMENT_BYTES, dtype=torch.uint8, device=device)


def new_context(engine: TensorRTEngine, memory: Tensor) -> Context:
    """Make a context on `activation_memory`."""
    context = engine.new_context()
    address = -(-memory.data_ptr() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    context.use_memory(address, engine.activation_bytes)
    return context


class BoundContext:
    """A context with everything set; `run` only queues work. It keeps its tensors alive."""

    def __init__(self, engine: TensorRTEngine, context: Context, tensors: Mapping[str, Tensor]) -> None:
        """Set profile, shapes and addresses.

        Args:
            tensors: all inputs and outputs, contiguous on the engine's device; outputs are written in place.

        Raises:
            EngineUnfitError: names, types or shapes are not the engine's.
        """
        self._context, self.tensors = context, dict(tensors)
        self._device = next(iter(tensors.values())).device
        _check_names_and_types(engine, tensors)
        inputs = {name: tuple(value.shape) for name, value in tensors.items() if engine.tensors[name].is_input}
        self.profile = choose_profile(engine.profiles, inputs)
        context.select_profile(self.profile, stream_handle(self._device))
        for name, shape in inputs.items():
            context.set_shape(name, shape)
        context.check_complete()
        for name, value in tensors.items():
            if context.shape(name) != tuple(value.shape):
                raise EngineUnfitError(f"{name!r} has {tuple(value.shape)}, the engine makes {context.shape(name)}")
            context.set_address(name, value.data_ptr())

    def run(self) -> None:
        """Queue one run on the current stream."""
        self._context.execute(stream_handle(self._device))


def choose_profile(profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, Shape]) -> int:
    """Return the profile with the smallest largest shapes among those that hold these.

    Raises:
        EngineUnfitError: none does; it says what the profiles hold.
    """
    fitting = [index for index, ranges in enumerate(profiles) if _holds(ranges, shapes)]
    if not fitting:
        held = "\n".join(
            f"  profile {index}: " + ", ".join(f"{name} {r.min} to {r.max}" for name, r in sorted(ranges.items()))
            for index, ranges in enumerate(profiles)
        )
        raise EngineUnfitError(f"no profile of the engine holds {dict(shapes)}:\n{held}")
    return min(fitting, key=lambda index: sum(math.prod(r.max) for r in profiles[index].values()))


def is_held(profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, Shape]) -> bool:
    """Say whether any profile holds these shapes."""
    return any(_holds(ranges, shapes) for ranges in profiles)


def stream_handle(device: torch.device) -> int:
    """Return the current CUDA stream's handle; 0 on a CPU, where what stands for an engine in tests runs at once."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type of an engine's tensor type."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _holds(ranges: Mapping[str, ShapeRange], shapes: Mapping[str, Shape]) -> bool:
    return all(
        name in ranges
        and len(shape) == len(ranges[name].min)
        and all(a <= n <= b for a, n, b in zip(ranges[name].min, shape, ranges[name].max, strict=True))
        for name, shape in shapes.items()
    )


def _check_names_and_types(engine: TensorRTEngine, tensors: Mapping[str, Tensor]) -> None:
    if set(engine.tensors) != set(tensors):
        raise EngineUnfitError(f"the engine has tensors {sorted(engine.tensors)}, expected {sorted(tensors)}")
    for name, value in tensors.items():
        if torch_dtype(engine.tensors[name].dtype) != value.dtype:
            raise EngineUnfitError(f"{name!r} of the engine is {engine.tensors[name].dtype}, expected {value.dtype}")
        if not value.is_contiguous():
            raise EngineUnfitError(f"{name!r} is not contiguous; TensorRT reads plain memory")


def run_once(engine: TensorRTEngine, inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the outputs for some inputs.

    Args:
        inputs: every input, on the device, in the engine's types.

    Raises:
        EngineUnfitError: names, types or shapes are not the engine's.
    """
    memory = activation_memory(engine, device)
    context = new_context(engine, memory)
    profile = choose_profile(engine.profiles, {name: tuple(value.shape) for name, value in inputs.items()})
    context.select_profile(profile, stream_handle(device))
    for name, value in inputs.items():
        context.set_shape(name, tuple(value.shape))
    outputs = {
        tensor.name: torch.empty(context.shape(tensor.name), dtype=torch_dtype(tensor.dtype), device=device)
        for tensor in engine.tensors.values()
        if not tensor.is_input
    }
    BoundContext(engine, context, {name: value.contiguous() for name, value in inputs.items()} | outputs).run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return outputs


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
