"""A graph in a TensorRT engine: tensors for every planned size, and execution contexts bound to them.

A context is bound once for one set of sizes; a captured CUDA graph holds addresses of its context's state. It knows the
sizes of the graphs `estimator_chunk` and `vocoder`; it knows nothing of the solver or of streams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs import GraphSpec, ShapeRange, TensorSpec
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
        """Set shapes and addresses.

        Args:
            tensors: all inputs and outputs in the engine's types, contiguous on its device; outputs are written in
                place.

        Raises:
            EngineUnfitError: shapes are not the engine's.
        """
        self._context, self.tensors = context, dict(tensors)
        self._device = next(iter(tensors.values())).device
        inputs = {name: tuple(value.shape) for name, value in tensors.items() if engine.tensors[name].is_input}
        _set_shapes(engine, context, inputs, self._device)
        context.check_complete()
        for name, value in tensors.items():
            if context.shape(name) != tuple(value.shape):
                raise EngineUnfitError(f"{name!r} has {tuple(value.shape)}, the engine makes {context.shape(name)}")
            context.set_address(name, value.data_ptr())

    def run(self) -> None:
        """Queue one run on the current stream."""
        self._context.execute(stream_handle(self._device))


def _set_shapes(engine: TensorRTEngine, context: Context, shapes: Mapping[str, Shape], device: torch.device) -> None:
    if not holds(engine.ranges, shapes):
        held = ", ".join(f"{name} {r.min} to {r.max}" for name, r in sorted(engine.ranges.items()))
        raise EngineUnfitError(f"the engine does not hold {dict(shapes)}: {held}")
    context.select_profile(stream_handle(device))
    for name, shape in shapes.items():
        context.set_shape(name, shape)


def stream_handle(device: torch.device) -> int:
    """Return the current CUDA stream's handle; 0 on a CPU, where what stands for an engine in tests runs at once."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type of an engine's tensor type."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def holds(ranges: Mapping[str, ShapeRange], shapes: Mapping[str, Shape]) -> bool:
    """Say whether inputs may have these shapes."""
    return all(
        name in ranges
        and len(shape) == len(ranges[name].min)
        and all(a <= n <= b for a, n, b in zip(ranges[name].min, shape, ranges[name].max, strict=True))
        for name, shape in shapes.items()
    )


def run_once(engine: TensorRTEngine, inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the outputs for some inputs.

    Args:
        inputs: every input, on the device, in the engine's types.

    Raises:
        EngineUnfitError: shapes are not the engine's.
    """
    memory = activation_memory(engine, device)
    context = new_context(engine, memory)
    _set_shapes(engine, context, {name: tuple(value.shape) for name, value in inputs.items()}, device)
    outputs = {
        tensor.name: torch.empty(context.shape(tensor.name), dtype=torch_dtype(tensor.dtype), device=device)
        for tensor in engine.tensors.values()
        if not tensor.is_input
    }
    BoundContext(engine, context, {name: value.contiguous() for name, value in inputs.items()} | outputs).run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return outputs


Axes = tuple[tuple[str, int], ...]
"""One shape of a graph: sizes of its axes, but for those that follow from them."""


def estimator_axes(streams: int, chunk_frames: int, prompt_frames: int, window_frames: int) -> Axes:
    """Return the axes of `estimator_chunk`, all prompts padded to one length; each stream has rows for its voice's."""
    rows = 2 * streams
    sizes = {"rows": rows, "prompt_rows": rows, "chunk_frames": chunk_frames, "prompt_frames": prompt_frames}
    return (*sizes.items(), ("window_frames", window_frames))


def vocoder_axes(streams: int, columns: int) -> Axes:
    """Return the axes of `vocoder`.

    Args:
        streams: in the batch.
        columns: mel frames that come in, with those of the chunk before and those to look ahead into.
    """
    return ("streams", streams), ("mel_frames", columns), ("mel_columns", columns)


class PlannedEngine:
    """Runs the engine; allocates nothing once it is made, but contexts at the first use of a size.

    All sizes share one memory for each tensor, so one of them computes at a time.
    """

    def __init__(self, engine: TensorRTEngine, spec: GraphSpec, planned: Sequence[Axes], device: torch.device) -> None:
        """Check the engine and allocate its tensors.

        Args:
            spec: of the graph, for these models.
            planned: sizes to be ready for; those that the engine does not hold are left out.

        Raises:
            EngineUnfitError: the engine is of another graph, or holds none of the sizes.
        """
        _check_graph(engine, spec)
        self._engine, self._spec, self._device = engine, spec, device
        self.names = frozenset(tensor.name for tensor in spec.inputs)
        """Inputs of the graph."""
        self.sizes = frozenset(sizes for sizes in planned if holds(engine.ranges, self._input_shapes(sizes)))
        if not self.sizes:
            raise EngineUnfitError(f"the engine holds none of the planned sizes, such as {planned[0]}")
        self._memory = {tensor.name: self._allocate(tensor) for tensor in (*spec.inputs, *spec.outputs)}
        self._activations = activation_memory(engine, device)
        self._bound: dict[Axes, BoundContext] = {}

    def bind(self, sizes: Axes) -> BoundContext:
        """Return the context of a planned size; the first call makes it, so it must not happen in a graph capture."""
        assert sizes in self.sizes, "only planned sizes have memory"
        if sizes not in self._bound:
            context = new_context(self._engine, self._activations)
            self._bound[sizes] = BoundContext(self._engine, context, self._tensors(sizes))
        return self._bound[sizes]

    def _input_shapes(self, sizes: Axes) -> dict[str, tuple[int, ...]]:
        axes = self._spec.complete(dict(sizes))
        return {tensor.name: tensor.shape(axes) for tensor in self._spec.inputs}

    def _allocate(self, tensor: TensorSpec) -> Tensor:
        count = max(math.prod(tensor.shape(self._spec.complete(dict(sizes)))) for sizes in self.sizes)
        # Zeros: what a mask rules out may hold any finite value.
        return torch.zeros(count, dtype=torch_dtype(tensor.dtype), device=self._device)

    def _tensors(self, sizes: Axes) -> dict[str, Tensor]:
        views, axes = {}, self._spec.complete(dict(sizes))
        for tensor in (*self._spec.inputs, *self._spec.outputs):
            shape = tensor.shape(axes)
            views[tensor.name] = self._memory[tensor.name][: math.prod(shape)].view(shape)
        return views


def _check_graph(engine: TensorRTEngine, spec: GraphSpec) -> None:
    expected = {tensor.name: tensor.dtype for tensor in (*spec.inputs, *spec.outputs)}
    got = {tensor.name: tensor.dtype for tensor in engine.tensors.values()}
    if got != expected:
        raise EngineUnfitError(f"the engine has tensors {got}, expected {expected}; export and build it again")
