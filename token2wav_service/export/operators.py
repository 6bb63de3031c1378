"""Which ONNX operators TensorRT takes, of those our models need; a graph is checked before it is kept.

Source: onnx-tensorrt's docs/operators.md for TensorRT 10.15 (opset 9 to 24). Only operators that our graphs use are
listed; one that is missing here may well be supported, but nobody has looked.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import ModelProto, TensorProto

from token2wav_service.errors import ExportError

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_NUMBERS = _FLOATS | {TensorProto.INT32, TensorProto.INT64}
_ALL = _NUMBERS | {TensorProto.BOOL}
_GROUPS = {
    frozenset({TensorProto.FLOAT, TensorProto.FLOAT16}): "Mish",
    frozenset({TensorProto.BOOL}): "And Not Or",
    _FLOATS: (
        "Clip Conv ConvTranspose Cos Elu Erf Exp Gemm LayerNormalization LeakyRelu Log MatMul Reciprocal Sigmoid Sin "
        "Softmax Softplus Sqrt Tanh"
    ),
    _NUMBERS: (
        "Abs Add Div Equal Gelu Greater GreaterOrEqual Less LessOrEqual Max Min Mul Neg Pad Pow Range ReduceL2 "
        "ReduceMean ReduceSum Sub"
    ),
    _ALL: (
        "Cast Concat Constant ConstantOfShape Expand Flatten Gather GatherElements Identity Reshape Shape Slice Split "
        "Squeeze Transpose Unsqueeze Where"
    ),
}
ELEMENT_TYPES = {name: types for types, names in _GROUPS.items() for name in names.split()}
"""Element types of each operator's data input."""
_DATA_INPUT = {"Where": 1}
"""Which input holds the data, where it is not the first."""


def check_operators(model: ModelProto) -> None:
    """Check that TensorRT takes every node.

    Raises:
        ExportError: it does not; the first few nodes are named.
    """
    found = list(_unsupported(model))
    if found:
        raise ExportError(
            f"{len(found)} nodes are not known to work in TensorRT, e.g. {'; '.join(found[:3])}; export with the torch "
            "and onnxscript of deploy/constraints-cpu.txt, or look the operator up in onnx-tensorrt's operators.md and "
            "list it in token2wav_service/export/operators.py"
        )


def _unsupported(model: ModelProto) -> Iterator[str]:
    types = _element_types(model)
    for node in model.graph.node:
        supported = ELEMENT_TYPES.get(node.op_type)
        if supported is None or node.domain:
            yield f"{node.name}: operator {node.domain or 'ai.onnx'}.{node.op_type} is not listed"
            continue
        position = _DATA_INPUT.get(node.op_type, 0)
        kind = types.get(node.input[position]) if len(node.input) > position else None
        if kind is not None and kind not in supported:
            yield f"{node.name}: operator {node.op_type} on {TensorProto.DataType.Name(kind)}"


def _element_types(model: ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.input, *graph.output, *graph.value_info]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}
