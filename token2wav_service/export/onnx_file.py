"""Writes one module as an ONNX file that matches its description; draws seeded inputs for a graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype
from torch import Generator, Tensor, nn
from torch.export import Dim

from servicekit.files import write_bytes
from token2wav_service.errors import ExportError
from token2wav_service.graphs import BOOL, GraphSpec, TensorSpec
from token2wav_service.runtime.tensorrt.planned import torch_dtype

OPSET = 18
"""Version of the operator set."""
LATEST_FRAME = 15_000
"""Bound of the random positions: 300 s."""
_EXPORTER_LOGGERS = ("torch.onnx._internal.exporter._registration", "torch.onnx")


def write_graph(module: nn.Module, spec: GraphSpec, path: Path) -> None:
    """Trace a module and write it to `path`, whole or not at all.

    Raises:
        ExportError: the graph can't be exported, or is not what the description says.
    """
    model = _to_onnx(module, spec)
    _strip(model)
    _name_output_axes(model, spec)
    check_interface(model, spec)
    onnx.checker.check_model(model, full_check=True)
    write_bytes(path, model.SerializeToString(deterministic=True))


def check_interface(model: ModelProto, spec: GraphSpec) -> None:
    """Check inputs and outputs against the description.

    Raises:
        ExportError: names, element types, ranks or fixed sizes differ.
    """
    for kind, tensors, values in (
        ("inputs", spec.inputs, model.graph.input),
        ("outputs", spec.outputs, model.graph.output),
    ):
        expected = [_shown(each.name, np_dtype_to_tensor_dtype(np.dtype(each.dtype)), each.dims) for each in tensors]
        kinds = [(value.name, value.type.tensor_type) for value in values]
        got = [_shown(name, kind.elem_type, [dim.dim_value for dim in kind.shape.dim]) for name, kind in kinds]
        if got != expected:
            raise ExportError(f"{spec.name} has the {kind} {'; '.join(got)}, expected {'; '.join(expected)}")


def _shown(name: str, element: int, dims: Sequence[str | int]) -> str:
    """Return a tensor's description, with 0 for an open size."""
    return f"{name} {TensorProto.DataType.Name(element)}{[dim if isinstance(dim, int) else 0 for dim in dims]}"


def traced_sizes(spec: GraphSpec) -> dict[str, int]:
    """Return sizes of all axes to trace a graph at: all different, so that no two axes are taken for one."""
    sizes: dict[str, int] = {}
    for axis in spec.axes:
        if axis not in spec.derived:
            sizes[axis] = max(spec.ranges[axis].min + 1, 1 + max(sizes.values(), default=1))
    return spec.complete(sizes)


def _to_onnx(module: nn.Module, spec: GraphSpec) -> ModelProto:
    inputs = sample_inputs(spec, traced_sizes(spec), seed=0)
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(
                module.eval(), tuple(inputs.values()), dynamic_shapes=_dynamic_shapes(spec), strict=False
            )
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=[tensor.name for tensor in spec.outputs],
                verbose=False,
            )
    except ModuleNotFoundError:
        raise
    # The exporter has no common base for what it raises; all of it means the same here.
    except Exception as err:
        raise ExportError(
            f"torch {torch.__version__} can't export {spec.name} ({err}); use the versions of "
            "deploy/constraints-cpu.txt"
        ) from err
    assert exported is not None
    return exported.model_proto


def _dynamic_shapes(spec: GraphSpec) -> dict[str, tuple[dict[int, Dim], ...]]:
    axes = {}
    for axis in spec.axes:
        if axis not in spec.derived:
            # The tracer takes an axis of size 1 for a broadcast one; ONNX makes no such difference.
            axes[axis] = Dim(axis, min=spec.ranges[axis].min + 1, max=spec.ranges[axis].max + 1)
    for axis, derived in spec.derived.items():
        if axis in spec.axes:
            axes[axis] = derived.factor * axes[derived.axis] + derived.offset
    named = ({place: axes[dim] for place, dim in enumerate(t.dims) if isinstance(dim, str)} for t in spec.inputs)
    return {"inputs": tuple(named)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporter says of packages and axis names that do not concern us."""
    loggers = [logging.getLogger(name) for name in _EXPORTER_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _strip(model: ModelProto) -> None:
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        holder.ClearField("metadata_props")
        holder.ClearField("doc_string")
    graph.ClearField("value_info")


def _name_output_axes(model: ModelProto, spec: GraphSpec) -> None:
    for tensor, value in zip(spec.outputs, model.graph.output, strict=True):
        for dim, shown in zip(tensor.dims, value.type.tensor_type.shape.dim, strict=True):
            if isinstance(dim, str):
                shown.dim_param = dim


def sample_inputs(spec: GraphSpec, sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
    """Draw inputs by name, in the description's order: rows of different lengths, anything in the padding.

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
    if tensor.dtype == BOOL:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randn(shape, generator=generator).to(torch_dtype(tensor.dtype))


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
