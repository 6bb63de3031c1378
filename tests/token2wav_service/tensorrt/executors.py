"""What the fake TensorRT computes with: a graph on the CPU, in ONNX Runtime or in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from token2wav_service.graphs.spec import DerivedAxis, GraphSpec

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}
_ONNX_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


@dataclass(frozen=True)
class Port:
    """An input or output."""

    dtype: str
    dims: tuple[int | str, ...]


class Executor(Protocol):
    """A graph that can run."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]

    def run(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]: ...
    def output_shape(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]: ...


ReadGraph = Callable[[bytes], Executor]
"""Makes a graph of an ONNX file's content."""


class _ByAxisNames:
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    derived: Mapping[str, DerivedAxis] = {}

    def output_shape(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        sizes: dict[int | str, int] = {}
        for port, shape in ((self.inputs[key], shape) for key, shape in shapes.items()):
            sizes.update(dict(zip(port.dims, shape, strict=True)))
        for axis, derived in self.derived.items():
            sizes[axis] = derived.size(sizes)  # type: ignore[arg-type]
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.outputs[name].dims)


class OnnxExecutor(_ByAxisNames):
    """Runs in ONNX Runtime, one thread."""

    def __init__(self, model: bytes, spec: GraphSpec | None = None) -> None:
        """Load the model; `spec` names the axes where the file does not."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        named = {} if spec is None else {tensor.name: tensor.dims for tensor in (*spec.inputs, *spec.outputs)}
        self.inputs, self.outputs = (
            {port.name: Port(_ONNX_TYPES[port.type], named.get(port.name, tuple(port.shape))) for port in ports}
            for ports in (self._session.get_inputs(), self._session.get_outputs())
        )

    def run(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        made = self._session.run(list(self.outputs), {name: value.numpy() for name, value in inputs.items()})
        return {
            name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in zip(self.outputs, made, strict=True)
        }


class ModuleExecutor(_ByAxisNames):
    """Runs a torch module that takes and gives what a description says."""

    def __init__(self, spec: GraphSpec, module: nn.Module) -> None:
        self.inputs = {tensor.name: Port(tensor.dtype.value, tensor.dims) for tensor in spec.inputs}
        self.outputs = {tensor.name: Port(tensor.dtype.value, tensor.dims) for tensor in spec.outputs}
        self.derived = spec.derived
        self._module = module

    def run(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        made = self._module(*(inputs[name] for name in self.inputs))
        made = made if isinstance(made, tuple) else (made,)
        return dict(zip(self.outputs, made, strict=True))
