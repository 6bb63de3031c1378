"""One decoder layer's weights, and the part of them that a tensor-parallel rank holds.

Queries, keys and values are one matrix for TensorRT-LLM, in that order; a rank has its heads of each. Where there are
fewer key-value heads than ranks, ranks share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from llm_service.qwen2 import Qwen2Shape


@dataclass(frozen=True)
class Rank:
    """A place in the grid of GPUs; those that differ only in their part of the context hold the same."""

    tensor: int  # of tp_size
    pipeline: int  # of pp_size


@dataclass(frozen=True)
class LayerWeights:
    """Matrices [out, in], biases and norms of one layer."""

    qkv: torch.Tensor  # [hidden + 2 * key_value, hidden]
    qkv_bias: torch.Tensor
    dense: torch.Tensor  # o_proj
    fc: torch.Tensor  # gate_proj: TensorRT-LLM applies the activation to `fc`
    gate: torch.Tensor  # up_proj
    proj: torch.Tensor  # down_proj
    input_norm: torch.Tensor
    post_norm: torch.Tensor


def layer_weights(decoder: Mapping[str, torch.Tensor], index: int) -> LayerWeights:
    """Take layer `index` out of the decoder's tensors; queries, keys and values are joined."""
    prefix = f"layers.{index}."
    attention = [f"{prefix}self_attn.{name}_proj" for name in ("q", "k", "v")]
    return LayerWeights(
        qkv=torch.cat([decoder[f"{name}.weight"] for name in attention]),
        qkv_bias=torch.cat([decoder[f"{name}.bias"] for name in attention]),
        dense=decoder[f"{prefix}self_attn.o_proj.weight"],
        fc=decoder[f"{prefix}mlp.gate_proj.weight"],
        gate=decoder[f"{prefix}mlp.up_proj.weight"],
        proj=decoder[f"{prefix}mlp.down_proj.weight"],
        input_norm=decoder[f"{prefix}input_layernorm.weight"],
        post_norm=decoder[f"{prefix}post_attention_layernorm.weight"],
    )


def split_qkv(tensor: torch.Tensor, shape: Qwen2Shape, tp_size: int, tp_rank: int) -> torch.Tensor:
    """Return a rank's rows of something with a row for each query, key and value channel, in that order."""
    parts = [shape.hidden, shape.key_value_size, shape.key_value_size]
    queries, keys, values = torch.split(tensor, parts)
    own = [split_heads(part, shape, tp_size, tp_rank) for part in (keys, values)]
    return torch.cat([queries.chunk(tp_size)[tp_rank], *own])


def split_heads(tensor: torch.Tensor, shape: Qwen2Shape, tp_size: int, tp_rank: int) -> torch.Tensor:
    """Return a rank's rows of the keys or of the values."""
    heads = shape.key_value_heads
    if heads >= tp_size:
        return tensor.chunk(tp_size)[tp_rank]
    return tensor.chunk(heads)[tp_rank // (tp_size // heads)]


def split_rows(tensor: torch.Tensor, tp_size: int, tp_rank: int) -> torch.Tensor:
    """Return a rank's rows (output channels)."""
    return tensor.chunk(tp_size)[tp_rank]


def split_columns(tensor: torch.Tensor, tp_size: int, tp_rank: int) -> torch.Tensor:
    """Return a rank's columns (input channels)."""
    return tensor.chunk(tp_size, dim=1)[tp_rank]


def pipeline_layers(num_layers: int, pp_size: int, pp_rank: int) -> range:
    """Return the layers of a pipeline stage; the first stages get one more where they don't divide evenly.

    Source: TensorRT-LLM 1.2.1, tensorrt_llm/mapping.py, Mapping.pp_layers.
    """
    size, rest = divmod(num_layers, pp_size)
    start = pp_rank * size + min(pp_rank, rest)
    return range(start, start + size + (pp_rank < rest))
