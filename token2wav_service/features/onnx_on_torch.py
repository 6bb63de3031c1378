"""Runs an ONNX graph with torch, on any device that torch has: the prompt models on a GPU.

Prompts have any length, and cuDNN plans every convolution anew for a length that it has not seen, which takes longer
than a CPU needs for the whole graph. So convolutions are matrix products here. Shapes are computed on the host, as
numpy arrays, beside the device's work; floats are tensors on the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from gpukit.graphs import own_stream

Value = Any
"""A float tensor on the device, or a numpy array of integers or truth values on the host."""
Attributes = Mapping[str, Any]
_Step = tuple[Callable[..., Value], tuple[str, ...], str]
_MAKES_FLOATS = ("Cast", "Constant", "ConstantOfShape", "DequantizeLinear")
"""Operators that may make floats on the host."""
_TAKES_AXES = ("ReduceMean", "ReduceProd", "ReduceSum", "Squeeze", "Unsqueeze")
"""Operators whose axes are an attribute, or in newer graphs an input, which is constant."""


class UnknownOperatorError(Exception):
    """The graph has an operator that is not known here."""


class TorchGraph:
    """A loaded graph; safe to call from several threads."""

    def __init__(self, path: Path, device: str) -> None:
        """Load weights onto the device and compute what depends on no input.

        Raises:
            UnknownOperatorError: it has an operator that is not known here.
            google.protobuf.message.DecodeError: it is no ONNX file.
        """
        import onnx

        graph = onnx.load(path).graph
        self.inputs = [item.name for item in graph.input if item.name not in {one.name for one in graph.initializer}]
        self._output = graph.output[0].name
        self._device = torch.device(device)
        self._stream = own_stream(self._device)
        self._constants: dict[str, Value] = {"": None}
        for one in graph.initializer:
            self._constants[one.name] = self._placed(onnx.numpy_helper.to_array(one))
        steps = []
        for node in graph.node:
            if node.op_type not in OPERATORS:
                raise UnknownOperatorError(f"{path.name} has the operator {node.op_type}")
            attributes = {one.name: _attribute(onnx.helper.get_attribute_value(one)) for one in node.attribute}
            names = tuple(node.input)
            if node.op_type in _TAKES_AXES and len(names) > 1:
                attributes["axes"], names = self._constants[names[1]].tolist(), names[:1]
            operator = partial(OPERATORS[node.op_type], attributes)
            if node.op_type in _MAKES_FLOATS:
                operator = partial(self._made, operator)
            if self._constants.keys() >= set(names):
                self._constants[node.output[0]] = operator(*[self._constants[name] for name in names])
            else:
                steps.append((operator, names, node.output[0]))
        self._steps = _with_last_uses(steps, {*self._constants, self._output})
        if self._stream is not None:
            torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def run(self, *inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the first output for the inputs, in the graph's order; beside what other threads compute."""
        with torch.cuda.stream(self._stream):
            return self._run(inputs)

    def _run(self, inputs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        values = dict(self._constants)
        values.update(zip(self.inputs, map(self._placed, inputs), strict=True))
        for operator, names, output, unused in self._steps:
            values[output] = operator(*[values[name] for name in names])
            for name in unused:
                del values[name]
        answer = values[self._output]
        return answer.cpu().numpy() if isinstance(answer, Tensor) else np.asarray(answer)

    def _made(self, operator: Callable[..., Value], *values: Value) -> Value:
        return self._placed(operator(*values))

    def _placed(self, value: Value) -> Value:
        """Put an array of floats onto the device."""
        if isinstance(value, Tensor) or value.dtype.kind != "f":
            return value
        return torch.from_numpy(np.array(value, np.float32)).to(self._device)


def _with_last_uses(steps: Sequence[_Step], kept: set[str]) -> list[tuple[Any, ...]]:
    """Return each step with the names of the values that no later one needs."""
    needed = set(kept)
    found = []
    for operator, names, output in reversed(steps):
        unused = list(set(names) - needed)
        needed.update(unused)
        found.append((operator, names, output, unused))
    return found[::-1]


def _attribute(value: Any) -> Any:
    """Return an attribute's value; a tensor's as an array."""
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _conv(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve [1, C, ...] in one or two dimensions, as a matrix product over the columns that a filter sees."""
    if x.ndim == 3:
        return _conv(_in_two_dimensions(a), x[:, :, None], weight[:, :, None], bias).squeeze(2)
    strides, dilations, pads = a.get("strides", _ONES), a.get("dilations", _ONES), a.get("pads", ())
    if any(pads):
        x = functional.pad(x, (pads[1], pads[3], pads[0], pads[2]))
    groups, kernel = x.shape[1] // weight.shape[1], weight.shape[2:]
    if kernel.numel() == 1 and strides == _ONES:
        columns, height = x[0].flatten(1), x.shape[2]
    else:
        columns = functional.unfold(x, kernel, dilations, 0, strides)[0]
        height = (x.shape[2] - dilations[0] * (kernel[0] - 1) - 1) // strides[0] + 1
    flat = weight.flatten(1)
    if groups == 1 and bias is not None:
        made = torch.addmm(bias.unsqueeze(1), flat, columns)
    else:
        grouped = columns.reshape(groups, -1, columns.shape[1])
        made = (flat.view(groups, -1, flat.shape[1]) @ grouped).flatten(0, 1)
        made = made if bias is None else made + bias.unsqueeze(1)
    return made.view(1, len(made), height, -1)


_ONES = [1, 1]


def _in_two_dimensions(a: Attributes) -> Attributes:
    left, right = a.get("pads", (0, 0))
    wide = {name: [1, *a.get(name, (1,))] for name in ("strides", "dilations")}
    return {**wide, "pads": (0, left, 0, right)}


def _batch_norm(a: Attributes, x: Tensor, gain: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, variance, gain, bias, eps=a.get("epsilon", 1e-5))


def _slice(a: Attributes, x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None) -> Value:
    at: list[Any] = [slice(None)] * x.ndim
    chosen, strides = range(len(starts)) if axes is None else axes, [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(chosen, starts, ends, strides, strict=True):
        at[int(axis)] = slice(int(start), int(end), int(step))
    return x[tuple(at)]


def _gather(a: Attributes, x: Value, indices: Value) -> Value:
    axis = a.get("axis", 0)
    if not isinstance(x, Tensor):
        return x[indices] if axis == 0 else np.take(x, indices, axis)
    if not indices.ndim:
        return x.select(axis, int(indices))
    return x.index_select(axis, torch.from_numpy(indices).to(x.device))


def _reshape(a: Attributes, x: Value, shape: Value) -> Value:
    return x.reshape([x.shape[axis] if size == 0 else int(size) for axis, size in enumerate(shape)])


def _expand(a: Attributes, x: Value, shape: Value) -> Value:
    whole = np.broadcast_shapes(tuple(x.shape), tuple(shape))
    return x.expand(whole) if isinstance(x, Tensor) else np.broadcast_to(x, whole)


def _unsqueeze(a: Attributes, x: Value) -> Value:
    shape, axes = list(x.shape), a["axes"]
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return x.reshape(shape)


def _pad(a: Attributes, x: Tensor, pads: Value, value: Tensor | None = None) -> Tensor:
    sides = zip(reversed(pads[: x.ndim].tolist()), reversed(pads[x.ndim :].tolist()), strict=True)
    return functional.pad(x, list(itertools.chain(*sides)), value=0.0 if value is None else float(value))


def _pool(a: Attributes, x: Tensor) -> Tensor:
    padding = a.get("pads", [0] * 2)[:1]
    return functional.avg_pool1d(
        x, a["kernel_shape"], a["strides"], padding, bool(a.get("ceil_mode")), bool(a.get("count_include_pad"))
    )


def _dequantise(a: Attributes, x: Value, scale: Tensor, zero: Value) -> Value:
    shape = [-1 if axis == a.get("axis", 1) else 1 for axis in range(x.ndim)]
    whole = (x.astype(np.float32) - zero.reshape(shape)) * scale.cpu().numpy().reshape(shape)
    return whole.astype(np.float32)


def _gemm(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    left, right = x.T if a.get("transA") else x, weight.T if a.get("transB") else weight
    return torch.addmm(bias, left, right, beta=a.get("beta", 1.0), alpha=a.get("alpha", 1.0))


def _cast(a: Attributes, x: Value) -> Value:
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(a["to"])
    if isinstance(x, Tensor):
        return x if dtype.kind == "f" else x.cpu().numpy().astype(dtype)
    return x.astype(dtype)


def _reduced(by_torch: Callable[..., Any], by_numpy: Callable[..., Any]) -> Callable[..., Value]:
    def reduce(a: Attributes, x: Value) -> Value:
        axes, keeps = a.get("axes"), bool(a.get("keepdims", 1))
        if isinstance(x, Tensor):
            return by_torch(x, dim=axes, keepdim=keeps)
        return np.asarray(by_numpy(x, axis=axes if axes is None else tuple(axes), keepdims=keeps))

    return reduce


def _where(a: Attributes, condition: Value, x: Value, y: Value) -> Value:
    if not isinstance(x, Tensor):
        return np.where(condition, x, y)
    return torch.where(torch.as_tensor(condition).to(x.device), x, y)


def _divided(x: Value, y: Value) -> Value:
    return x / y if isinstance(x, Tensor) or isinstance(y, Tensor) or x.dtype.kind == "f" else x // y


OPERATORS: Mapping[str, Callable[..., Value]] = {
    "Add": lambda a, x, y: x + y,
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Concat": lambda a, *parts: (torch.cat if isinstance(parts[0], Tensor) else np.concatenate)(parts, a["axis"]),
    "Constant": lambda a: a["value"],
    "ConstantOfShape": lambda a, shape: np.full(shape, a["value"][0] if "value" in a else np.float32(0)),
    "Conv": _conv,
    "DequantizeLinear": _dequantise,
    "Div": lambda a, x, y: _divided(x, y),
    "Equal": lambda a, x, y: x == y,
    "Erf": lambda a, x: torch.erf(x),
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "GreaterOrEqual": lambda a, x, y: x >= y,
    "Identity": lambda a, x: x,
    "Less": lambda a, x, y: x < y,
    "MatMul": lambda a, x, y: x @ y,
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Not": lambda a, x: ~x,
    "Pad": _pad,
    "Pow": lambda a, x, y: x**y,
    "Range": lambda a, start, end, step: np.arange(start, end, step),
    "ReduceMean": _reduced(torch.mean, np.mean),
    "ReduceProd": _reduced(torch.prod, np.prod),
    "ReduceSum": _reduced(torch.sum, np.sum),
    "Relu": lambda a, x: torch.relu(x),
    "Reshape": _reshape,
    "Round": lambda a, x: torch.round(x),
    "Shape": lambda a, x: np.array(x.shape, np.int64),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Squeeze": lambda a, x: x.squeeze(tuple(a["axes"])),
    "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: torch.tanh(x),
    "Transpose": lambda a, x: (torch.permute if isinstance(x, Tensor) else np.transpose)(x, a["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""Operators of ONNX by name: attributes and inputs to the first output."""
