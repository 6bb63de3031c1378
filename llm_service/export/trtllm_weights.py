"""The tensors of one rank's file, by TensorRT-LLM's names.

    transformer.vocab_embedding.weight                      first pipeline stage
    transformer.layers.N.attention.{qkv,dense}              N counts within the stage
    transformer.layers.N.mlp.{fc,gate,proj}                 fc is gate_proj, gate is up_proj
    transformer.layers.N.{input_layernorm,post_layernorm}.weight
    transformer.ln_f.weight, lm_head.weight, lm_head.bias   last pipeline stage

Source: TensorRT-LLM 1.2.1, docs/source/legacy/architecture/checkpoint.md and model-weights-loader.md. The head differs:
it has the speech and end tokens' rows only, and a bias; the model class in `llm_service.adapters` knows.
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
from llm_service.export.trtllm_options import TrtllmOptions
from llm_service.export.weight_only import quantise_weight
from llm_service.vocab import SPEECH_HEAD_ROWS

Tensors = dict[str, torch.Tensor]

# Rows of the head on each rank come in runs of this many, as products of half precision like them.
HEAD_MULTIPLE = 8
# The bias of rows that only fill up; as far below any logit as the model class puts all other tokens.
IMPOSSIBLE_LOGIT = -30000.0


def padded_head_rows(tp_size: int) -> int:
    """Return the head's rows, filled up so that each rank has an even share."""
    multiple = HEAD_MULTIPLE * tp_size
    return -(-SPEECH_HEAD_ROWS // multiple) * multiple


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
    extra = padded_head_rows(options.tp_size) - SPEECH_HEAD_ROWS
    weight = functional.pad(source.head.weight, (0, 0, 0, extra))
    bias = functional.pad(source.head.bias, (0, extra), value=IMPOSSIBLE_LOGIT)
    return {
        "lm_head.weight": split_rows(weight, options.tp_size, rank.tensor).to(dtype),
        "lm_head.bias": split_rows(bias, options.tp_size, rank.tensor).to(dtype),
    }
