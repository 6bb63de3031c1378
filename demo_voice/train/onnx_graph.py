"""Writes small ONNX files layer by layer, with weights in int8 where that is allowed.

An int8 weight has a scale for each output channel and passes a DequantizeLinear node, which ONNX Runtime computes
once, when it loads the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from demo_voice.packing import quantised
from demo_voice.train.convolution import ConvUnit, ResidualBlock
from token2wav_service.checkpoint.make_onnx import IR_VERSION, OPSET

_Array = npt.NDArray[np.generic]


class OnnxGraph:
    """Collects nodes and weights; every method returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, _Array] = {}

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add one operator with one result."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: _Array) -> str:
        """Add a weight that stays as it is."""
        name = f"weight_{len(self._weights)}"
        self._weights[name] = value
        return name

    def matrix(self, value: npt.NDArray[np.float32]) -> str:
        """Add a weight in int8, with a scale for each row of its first axis."""
        rows, scales = quantised(value)
        zeros = np.zeros(len(scales), np.int8)
        names = [self.constant(rows), self.constant(scales.astype(np.float32)), self.constant(zeros)]
        return self.node("DequantizeLinear", names, axis=0)

    def conv(self, x: str, unit: ConvUnit) -> str:
        """Add a convolution with its batch norm folded in."""
        weight, bias = (value.detach().float().cpu().numpy() for value in unit.folded())
        return self.node(
            "Conv",
            [x, self.matrix(weight), self.constant(bias)],
            kernel_shape=[weight.shape[2]],
            strides=[unit.stride],
            dilations=[unit.dilation],
            pads=[unit.padding, unit.padding],
        )

    def residual(self, x: str, block: ResidualBlock) -> str:
        """Add a residual block."""
        inner = self.node("Relu", [self.conv(x, block.wide)])
        return self.node("Relu", [self.node("Add", [x, self.conv(inner, block.point)])])

    def save(
        self, path: Path, inputs: Sequence[onnx.ValueInfoProto], output: str, kind: int, shape: Sequence[str | int]
    ) -> None:
        """Check the graph and write it; `output` becomes the file's only output, under its own name."""
        outputs = [helper.make_tensor_value_info(output, kind, list(shape))]
        weights = [numpy_helper.from_array(value, name) for name, value in self._weights.items()]
        graph = helper.make_graph(self._nodes, path.stem, list(inputs), outputs, weights)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="cosydit", ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))


def float_input(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """Describe a float32 input."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def int32_input(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """Describe an int32 input."""
    return helper.make_tensor_value_info(name, TensorProto.INT32, list(shape))
