"""Execution contexts of one engine, bound to shapes and tensors.

A context is bound once for one set of sizes. A captured CUDA graph holds addresses of its context's state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs.spec import ShapeRange
from token2wav_service.runtime.tensorrt.api import Context, TensorRTEngine
from token2wav_service.runtime.tensorrt.types import Shape

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
