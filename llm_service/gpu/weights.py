"""The decoder's weights as the GPU engine holds them.

Knows nothing of kernels or requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from llm_service.errors import CheckpointError
from llm_service.qwen2 import Qwen2Shape, read_shape
from llm_service.speech_head import TensorFiles, decoder_of, read_speech_head, read_vocabulary
from llm_service.vocab import SpeechVocabulary


@dataclass(frozen=True)
class LayerWeights:
    """One layer. C hidden, D head size, H query heads, G key-value heads, F feed-forward."""

    first_norm: Tensor  # [C] float32
    qkv: Tensor  # [(H + 2G) D, C]: queries, keys, values
    qkv_bias: Tensor  # [(H + 2G) D] float32
    output: Tensor  # [C, H D]
    second_norm: Tensor  # [C] float32
    gate_up: Tensor  # [2F, C]: gate and up rows in turn
    down: Tensor  # [C, F]


@dataclass(frozen=True)
class Weights:
    """All of them, on one device; matrices in the computing type."""

    shape: Qwen2Shape
    vocabulary: SpeechVocabulary
    embedding: Tensor  # [vocabulary, C]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [C] float32
    head: Tensor  # [rows, C]
    head_bias: Tensor  # [rows] float32; zeros for a head without one


def load_weights(model_dir: Path, device: torch.device, dtype: torch.dtype) -> Weights:
    """Load a checkpoint directory in Hugging Face layout.

    Raises:
        CheckpointError: the directory is incomplete, of another shape, or numbered in a way that can't be read.
    """
    shape = read_shape(model_dir / "config.json")
    if shape.head_size & (shape.head_size - 1) or shape.head_size < 16:
        raise CheckpointError(f"{model_dir}: heads of {shape.head_size} channels; expected a power of two from 16 on")
    tensors = decoder_of(TensorFiles(model_dir), shape, model_dir)
    head = read_speech_head(model_dir)
    reader = _Reader(tensors, device, dtype)
    return Weights(
        shape=shape,
        vocabulary=read_vocabulary(model_dir),
        embedding=tensors["embed_tokens.weight"].to(device, dtype),
        layers=tuple(_layer(reader, index) for index in range(shape.layers)),
        norm=reader.vector("norm.weight"),
        head=head.weight.to(device, dtype).contiguous(),
        head_bias=head.bias.to(device, torch.float32),
    )


def stored_type(model_dir: Path) -> torch.dtype:
    """Return the half type that a checkpoint says it is stored in; bfloat16 if it says another one, or nothing.

    Float16 is the more exact of both, but holds nothing above 65504: only a checkpoint made for it is safe with it.
    """
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return torch.bfloat16  # loading it says what is wrong
    name = config.get("torch_dtype") or config.get("dtype")
    return torch.float16 if name == "float16" else torch.bfloat16


@dataclass(frozen=True)
class _Reader:
    tensors: Mapping[str, Tensor]
    device: torch.device
    dtype: torch.dtype

    def vector(self, *names: str) -> Tensor:
        return torch.cat([self.tensors[name] for name in names]).to(self.device, torch.float32)

    def matrix(self, *names: str) -> Tensor:
        return torch.cat([self.tensors[name] for name in names]).to(self.device, self.dtype)


def _layer(reader: _Reader, index: int) -> LayerWeights:
    at = f"layers.{index}."
    projections = [f"{at}self_attn.{part}_proj" for part in "qkv"]
    gate, up = (reader.matrix(f"{at}mlp.{part}_proj.weight") for part in ("gate", "up"))
    return LayerWeights(
        first_norm=reader.vector(f"{at}input_layernorm.weight"),
        qkv=reader.matrix(*(f"{name}.weight" for name in projections)),
        qkv_bias=reader.vector(*(f"{name}.bias" for name in projections)),
        output=reader.matrix(f"{at}self_attn.o_proj.weight"),
        second_norm=reader.vector(f"{at}post_attention_layernorm.weight"),
        gate_up=torch.stack([gate, up], dim=1).flatten(0, 1).contiguous(),
        down=reader.matrix(f"{at}mlp.down_proj.weight"),
    )
