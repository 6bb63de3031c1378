"""SmoothQuant: 8-bit weights and activations, the activations' outliers moved into the weights beforehand.

Each input channel of a matrix is multiplied by a factor, and what feeds it is divided by the same: the norm before
queries, keys, values and before the two feed-forward inputs, and `smoother` at run time before the other two matrices.

    NAME.weight              [out, in] int8
    NAME.per_channel_scale   [1, out] or [1, 1] float32; queries, keys, values always [1, out]
    NAME.act_scale           [1, 1] float32, without per_token
    NAME.smoother            [1, in] float32, of dense and proj
    *_layernorm.scale_to_int, {attention,mlp}.quantization_scaling_factor   [1] float32: what activations are
                             multiplied by; the latter two without per_token only

Without per_token a result is its accumulator times act_scale times per_channel_scale.

Source: https://arxiv.org/abs/2211.10438; names and shapes: TensorRT-LLM 1.2.1, quantization/layers.py and
models/qwen/convert.py. Differs: with one scale for a matrix, queries, keys and values are divided by their scale, where
convert.py multiplies by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_service.export.layer import LayerWeights, Rank, split_columns, split_qkv, split_rows
from llm_service.export.trtllm_options import SmoothQuant, TrtllmOptions
from llm_service.qwen2 import Qwen2Shape

INT8_MAX = 127.0
# Below this a range or factor counts as nothing.
SMALLEST = 1e-5


@dataclass(frozen=True)
class MatrixRange:
    """What was seen at one matrix."""

    input_max: torch.Tensor  # [in] float32, largest magnitude of each input channel
    output_max: float  # largest magnitude of any output


@dataclass(frozen=True)
class LayerRanges:
    """What was seen in one layer."""

    qkv: MatrixRange
    dense: MatrixRange
    fc: MatrixRange  # its input is that of `gate`
    gate: MatrixRange
    proj: MatrixRange


@dataclass(frozen=True)
class QuantisedMatrix:
    """One matrix of a smoothed layer."""

    integers: torch.Tensor  # [out, in] int8
    scale: torch.Tensor  # [out] float32, all equal where there is one scale for the matrix
    input_max: float  # after smoothing
    output_max: float


@dataclass(frozen=True)
class SmoothedLayer:
    """One layer, smoothed and quantised, not yet cut into ranks."""

    qkv: QuantisedMatrix
    dense: QuantisedMatrix
    fc: QuantisedMatrix
    gate: QuantisedMatrix
    proj: QuantisedMatrix
    qkv_bias: torch.Tensor
    input_norm: torch.Tensor  # [hidden] float32
    post_norm: torch.Tensor
    dense_smoother: torch.Tensor  # [hidden] float32
    proj_smoother: torch.Tensor  # [feed_forward] float32


def smooth_layer(weights: LayerWeights, ranges: LayerRanges, smooth: SmoothQuant, shape: Qwen2Shape) -> SmoothedLayer:
    """Smooth and quantise a layer."""
    before_qkv = _factors(ranges.qkv.input_max, smooth.alpha, weights.qkv)
    before_dense = _factors(ranges.dense.input_max, smooth.alpha, weights.dense)
    before_mlp = _factors(ranges.fc.input_max, smooth.alpha, weights.fc, weights.gate)
    before_proj = _factors(ranges.proj.input_max, smooth.alpha, weights.proj)
    parts = [shape.hidden, shape.key_value_size, shape.key_value_size]
    per_channel = smooth.per_channel
    return SmoothedLayer(
        qkv=_quantise(weights.qkv, before_qkv, ranges.qkv, per_channel, parts),
        dense=_quantise(weights.dense, before_dense, ranges.dense, per_channel),
        fc=_quantise(weights.fc, before_mlp, ranges.fc, per_channel),
        gate=_quantise(weights.gate, before_mlp, ranges.gate, per_channel),
        proj=_quantise(weights.proj, before_proj, ranges.proj, per_channel),
        qkv_bias=weights.qkv_bias,
        input_norm=weights.input_norm.float() / before_qkv,
        post_norm=weights.post_norm.float() / before_mlp,
        dense_smoother=before_dense,
        proj_smoother=before_proj,
    )


def smoothed_tensors(
    layer: SmoothedLayer, shape: Qwen2Shape, options: TrtllmOptions, rank: Rank
) -> dict[str, torch.Tensor]:
    """Return a rank's tensors of a smoothed layer, by their names within the layer."""
    assert options.smooth_quant is not None  # else there would be no smoothed layer
    tp, place = options.tp_size, rank.tensor
    is_static = not options.smooth_quant.per_token
    dtype: torch.dtype = getattr(torch, options.dtype)
    tensors = {
        "attention.qkv.weight": split_qkv(layer.qkv.integers, shape, tp, place),
        "attention.qkv.bias": split_qkv(layer.qkv_bias, shape, tp, place).to(dtype),
        "attention.dense.weight": split_columns(layer.dense.integers, tp, place),
        "attention.dense.smoother": _row(split_rows(layer.dense_smoother, tp, place)),
        "mlp.fc.weight": split_rows(layer.fc.integers, tp, place),
        "mlp.gate.weight": split_rows(layer.gate.integers, tp, place),
        "mlp.proj.weight": split_columns(layer.proj.integers, tp, place),
        "mlp.proj.smoother": _row(split_rows(layer.proj_smoother, tp, place)),
        "input_layernorm.weight": layer.input_norm.to(dtype),
        "post_layernorm.weight": layer.post_norm.to(dtype),
        "input_layernorm.scale_to_int": _to_int(layer.qkv, is_static),
        "post_layernorm.scale_to_int": _to_int(layer.fc, is_static),
    }
    if is_static:
        tensors["attention.quantization_scaling_factor"] = _to_int(layer.dense, is_static)
        tensors["mlp.quantization_scaling_factor"] = _to_int(layer.proj, is_static)
    return tensors | _scales(layer, shape, options, rank)


def _scales(layer: SmoothedLayer, shape: Qwen2Shape, options: TrtllmOptions, rank: Rank) -> dict[str, torch.Tensor]:
    assert options.smooth_quant is not None
    tp, place = options.tp_size, rank.tensor
    is_static, per_channel = not options.smooth_quant.per_token, options.smooth_quant.per_channel
    matrices = {
        "attention.qkv": (layer.qkv, split_qkv(layer.qkv.scale, shape, tp, place)),
        "attention.dense": (layer.dense, layer.dense.scale),
        "mlp.fc": (layer.fc, split_rows(layer.fc.scale, tp, place)),
        "mlp.gate": (layer.gate, split_rows(layer.gate.scale, tp, place)),
        "mlp.proj": (layer.proj, layer.proj.scale),
    }
    tensors = {}
    for name, (matrix, scale) in matrices.items():
        width = len(scale) if per_channel or matrix is layer.qkv else 1
        factor = matrix.input_max / matrix.output_max if is_static else 1.0
        tensors[f"{name}.per_channel_scale"] = _row(scale[:width] * factor)
        if is_static:
            tensors[f"{name}.act_scale"] = torch.tensor([[matrix.output_max / INT8_MAX]])
    return tensors


def _factors(input_max: torch.Tensor, alpha: float, *matrices: torch.Tensor) -> torch.Tensor:
    """Return what each input channel of the matrices is multiplied by: [in] float32."""
    weight_max = torch.cat([matrix.float() for matrix in matrices]).abs().amax(dim=0).clamp(min=SMALLEST)
    return (input_max.float().clamp(min=SMALLEST) ** alpha / weight_max ** (1 - alpha)).clamp(min=SMALLEST)


def _quantise(
    matrix: torch.Tensor, factors: torch.Tensor, seen: MatrixRange, per_channel: bool, parts: list[int] | None = None
) -> QuantisedMatrix:
    """Smooth and quantise a matrix; `parts` are the runs of rows that have a scale of their own in any case."""
    smoothed = matrix.float() * factors
    largest = smoothed.abs().amax(dim=1)
    if not per_channel:
        runs = torch.split(largest, parts or [len(largest)])
        largest = torch.cat([run.amax().expand(len(run)) for run in runs])
    scale = (largest / INT8_MAX).clamp(min=SMALLEST / INT8_MAX)
    integers = (smoothed / scale[:, None]).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    input_max = max(float((seen.input_max.float() / factors).max()), SMALLEST)
    return QuantisedMatrix(integers, scale, input_max, max(seen.output_max, SMALLEST))


def _to_int(matrix: QuantisedMatrix, is_static: bool) -> torch.Tensor:
    """What the matrix's input is multiplied by; per token the engine finds it itself."""
    return torch.tensor([INT8_MAX / matrix.input_max if is_static else 1.0])


def _row(vector: torch.Tensor) -> torch.Tensor:
    return vector.float().reshape(1, -1)
