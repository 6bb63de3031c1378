"""The tensors of one rank's file, by TensorRT-LLM's names, and how weights become integers.

    transformer.vocab_embedding.weight                      first pipeline stage
    transformer.layers.N.attention.{qkv,dense}              N counts within the stage
    transformer.layers.N.mlp.{fc,gate,proj}                 fc is gate_proj, gate is up_proj
    transformer.layers.N.{input_layernorm,post_layernorm}.weight
    transformer.ln_f.weight, lm_head.weight, lm_head.bias   last pipeline stage

Integer weights have a scale for each output channel; a weight is its integer times its channel's scale:

    int8   weight [out, in] int8                                              per_channel_scale [out]
    int4   weight [out / 2, in] int8: a byte holds rows 2i (low) and 2i + 1   per_channel_scale [out]

The order is plain: linear weights of a TensorRT-LLM checkpoint are [out, in], and the build puts them into the order
that the GPU's kernels read (`llm_service.adapters`).

Source: TensorRT-LLM 1.2.1, docs/source/legacy/architecture/checkpoint.md (names, order), model-weights-loader.md,
reference/precision.md (scales) and quantization/functional.py (two's complement, low half first). Two things differ.
The head has the speech and end tokens' rows only, and a bias; the model class in `llm_service.adapters` knows. The
largest weight of a channel becomes 127 or 7, so that positive and negative ones err alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from llm_service.export.layer import (
    LayerWeights,
    Rank,
    layer_weights,
    pipeline_layers,
    split_columns,
    split_qkv,
    split_rows,
)
from llm_service.export.smooth_quant import SmoothedLayer, smoothed_tensors
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm_options import TrtllmOptions, WeightOnly
from llm_service.vocab import COSYVOICE2, SpeechVocabulary

Tensors = dict[str, torch.Tensor]

# Rows of the head on each rank come in runs of this many, as products of half precision like them.
HEAD_MULTIPLE = 8
# The bias of rows that only fill up; as far below any logit as the model class puts all other tokens.
IMPOSSIBLE_LOGIT = -30000.0


def padded_head_rows(tp_size: int, vocabulary: SpeechVocabulary = COSYVOICE2) -> int:
    """Return the head's rows, filled up so that each rank has an even share."""
    multiple = HEAD_MULTIPLE * tp_size
    return -(-vocabulary.head_rows // multiple) * multiple


def rank_tensors(
    source: SpeechLMSource, options: TrtllmOptions, rank: Rank, smoothed: Sequence[SmoothedLayer] | None
) -> Tensors:
    """Return everything that a rank's file holds.

    Args:
        source: the model.
        options: checked with `check_options`.
        rank: whose file.
        smoothed: all layers, with SmoothQuant; else None.
    """
    dtype: torch.dtype = getattr(torch, options.dtype)
    tensors: Tensors = {}
    if rank.pipeline == 0:
        tensors["transformer.vocab_embedding.weight"] = source.embedding.to(dtype)
    stage = pipeline_layers(source.shape.layers, options.pp_size, rank.pipeline)
    for place, index in enumerate(stage):
        if smoothed is not None:
            layer = smoothed_tensors(smoothed[index], source.shape, options, rank)
        else:
            layer = _layer_tensors(layer_weights(source.decoder, index), source, options, rank)
        tensors |= {f"transformer.layers.{place}.{name}": tensor for name, tensor in layer.items()}
    if rank.pipeline == options.pp_size - 1:
        tensors["transformer.ln_f.weight"] = source.decoder["norm.weight"].to(dtype)
        tensors |= _head_tensors(source, options, rank, dtype)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _layer_tensors(weights: LayerWeights, source: SpeechLMSource, options: TrtllmOptions, rank: Rank) -> Tensors:
    tp, place = options.tp_size, rank.tensor
    dtype: torch.dtype = getattr(torch, options.dtype)
    matrices = {
        "attention.qkv": split_qkv(weights.qkv, source.shape, tp, place),
        "attention.dense": split_columns(weights.dense, tp, place),
        "mlp.fc": split_rows(weights.fc, tp, place),
        "mlp.gate": split_rows(weights.gate, tp, place),
        "mlp.proj": split_columns(weights.proj, tp, place),
    }
    tensors = {
        "attention.qkv.bias": split_qkv(weights.qkv_bias, source.shape, tp, place).to(dtype),
        "input_layernorm.weight": weights.input_norm.to(dtype),
        "post_layernorm.weight": weights.post_norm.to(dtype),
    }
    for name, matrix in matrices.items():
        tensors |= _linear_tensors(name, matrix, options, dtype)
    return tensors


def _linear_tensors(name: str, matrix: torch.Tensor, options: TrtllmOptions, dtype: torch.dtype) -> Tensors:
    if options.weight_only is None:
        return {f"{name}.weight": matrix.to(dtype)}
    integers, scale = quantise_weight(matrix, options.weight_only, dtype)
    return {f"{name}.weight": integers, f"{name}.per_channel_scale": scale}


def _head_tensors(source: SpeechLMSource, options: TrtllmOptions, rank: Rank, dtype: torch.dtype) -> Tensors:
    """The head is never quantised: it is small, and decides."""
    extra = padded_head_rows(options.tp_size, source.vocabulary) - source.vocabulary.head_rows
    weight = functional.pad(source.head.weight, (0, 0, 0, extra))
    bias = functional.pad(source.head.bias, (0, extra), value=IMPOSSIBLE_LOGIT)
    return {
        "lm_head.weight": split_rows(weight, options.tp_size, rank.tensor).to(dtype),
        "lm_head.bias": split_rows(bias, options.tp_size, rank.tensor).to(dtype),
    }


NIBBLE_BITS = 4
LOW_NIBBLE = 0x0F
# A channel of zeros would have no scale, and anything times zero is right. Half precision can hold it.
SMALLEST_SCALE = 1e-7


def quantise_weight(
    weight: torch.Tensor, kind: WeightOnly, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix, symmetrically and each output channel by its own largest weight.

    Args:
        weight: [out, in], floating point.
        kind: int8 or int4; int4 needs an even number of output channels.
        scale_dtype: of the scales; the integers are chosen for the rounded scales.

    Returns:
        Integers, packed as above, and scales [out]. Each weight errs by half a scale at most.
    """
    largest = (1 << (kind.bits - 1)) - 1
    values = weight.float()
    scale = (values.abs().amax(dim=1) / largest).clamp(min=SMALLEST_SCALE).to(scale_dtype)
    integers = (values / scale.float()[:, None]).round().clamp(-largest, largest).to(torch.int8)
    return (pack_int4(integers) if kind is WeightOnly.INT4 else integers), scale


def dequantise_weight(integers: torch.Tensor, scale: torch.Tensor, kind: WeightOnly) -> torch.Tensor:
    """Return the matrix [out, in] float32 that packed integers and scales [out] stand for."""
    plain = unpack_int4(integers) if kind is WeightOnly.INT4 else integers
    return plain.float() * scale.float()[:, None]


def pack_int4(integers: torch.Tensor) -> torch.Tensor:
    """Pack rows in pairs: [out, in] int8 of -8..7 -> [out / 2, in] int8, the even row in the low half of the byte."""
    low, high = integers[0::2] & LOW_NIBBLE, integers[1::2] & LOW_NIBBLE
    return low | (high << NIBBLE_BITS)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Undo `pack_int4`: [out / 2, in] int8 -> [out, in] int8."""
    # Shifting up and down again copies the sign of four bits into eight.
    low = (packed << NIBBLE_BITS) >> NIBBLE_BITS
    return torch.stack([low, packed >> NIBBLE_BITS], dim=1).reshape(-1, packed.shape[1])
