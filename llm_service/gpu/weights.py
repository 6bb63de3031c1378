"""The decoder's weights as the GPU engine holds them, and the numbers that come with a checkpoint.

Sizes, special ids, tied or separate head, and whether the head has a bias are read from the checkpoint directory.
Knows nothing of kernels or requests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError
from llm_service.huggingface_layout import FIRST_ID_KEY, HEAD_BIAS, ROWS_KEY
from llm_service.qwen2 import EMBEDDING, Qwen2Shape, read_shape
from llm_service.speech_head import HEAD_WEIGHT, TensorFiles, decoder_of, read_tensors
from llm_service.vocab import SPEECH_TOKEN_COUNT, VocabularyError, vocabulary_of_ids, vocabulary_of_table

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpeechIds:
    """How a checkpoint numbers its speech tokens; head row i is LLM id `first_id + i`."""

    first_id: int
    rows: int
    """Rows of the speech head: speech tokens, then end tokens."""
    end_rows: tuple[int, ...]
    """Head rows that end an answer."""


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
    ids: SpeechIds
    embedding: Tensor  # [vocabulary, C]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [C] float32
    head: Tensor  # [rows, C]
    head_bias: Tensor  # [rows] float32; zeros for a head without one

    @property
    def vocabulary_rows(self) -> int:
        """Rows of the embedding table."""
        return self.embedding.shape[0]


def load_weights(model_dir: Path, device: torch.device, dtype: torch.dtype) -> Weights:
    """Load a checkpoint directory in Hugging Face layout.

    Raises:
        CheckpointError: the directory is incomplete, of another shape, or numbered in a way that can't be read.
    """
    shape = read_shape(model_dir / "config.json")
    if shape.head_size & (shape.head_size - 1) or shape.head_size < 16:
        raise CheckpointError(f"{model_dir}: heads of {shape.head_size} channels; expected a power of two from 16 on")
    files = TensorFiles(model_dir)
    tensors = decoder_of(files, shape, model_dir)
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    ids = _speech_ids(config, model_dir)
    head, bias = _head(files, config, ids, model_dir)
    reader = _Reader(tensors, device, dtype)
    return Weights(
        shape=shape,
        ids=ids,
        embedding=tensors["embed_tokens.weight"].to(device, dtype),
        layers=tuple(_layer(reader, index) for index in range(shape.layers)),
        norm=reader.vector("norm.weight"),
        head=head.to(device, dtype).contiguous(),
        head_bias=bias.to(device, torch.float32),
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


def _speech_ids(config: Mapping[str, Any], where: Path) -> SpeechIds:
    """Read the numbering: by the head's first id, or by the table's size; other ones must say how an answer ends."""
    try:
        has_id = FIRST_ID_KEY in config
        vocabulary = vocabulary_of_ids(config[FIRST_ID_KEY]) if has_id else vocabulary_of_table(config["vocab_size"])
    except (KeyError, VocabularyError) as err:
        if FIRST_ID_KEY not in config:
            raise CheckpointError(f"{where / 'config.json'}: {err}") from err
        return _own_ids(config, where)
    rows = int(config.get(ROWS_KEY, vocabulary.head_rows))
    return SpeechIds(vocabulary.first_id, rows, tuple(range(SPEECH_TOKEN_COUNT, rows)))


def _own_ids(config: Mapping[str, Any], where: Path) -> SpeechIds:
    """Read a numbering of no known family."""
    first_id, rows, ends = int(config[FIRST_ID_KEY]), int(config.get(ROWS_KEY, 0)), config.get("eos_token_id", ())
    ids = (ends,) if isinstance(ends, int) else tuple(ends)
    end_rows = tuple(sorted(end - first_id for end in ids if 0 <= end - first_id < rows))
    if not end_rows:
        raise CheckpointError(
            f"{where}: none of the end ids {ids} is a row of the head ({first_id}..{first_id + rows})"
        )
    return SpeechIds(first_id, rows, end_rows)


def _head(files: TensorFiles, config: Mapping[str, Any], ids: SpeechIds, where: Path) -> tuple[Tensor, Tensor]:
    """Return weight [rows, C] and bias [rows] of the speech rows, wherever the directory has them."""
    path = where / SPEECH_HEAD_FILE
    if path.is_file():
        parts = read_tensors(path)
        weight, bias = parts.get("weight"), parts.get("bias")
    else:
        name = HEAD_WEIGHT if HEAD_WEIGHT in files else EMBEDDING
        if name == EMBEDDING and not config.get("tie_word_embeddings"):
            raise CheckpointError(f"{where} has no {HEAD_WEIGHT} and no tied embedding; give a whole checkpoint")
        weight, bias = files[name], files[HEAD_BIAS] if HEAD_BIAS in files else None
    if weight is not None and weight.shape[0] >= ids.first_id + ids.rows:
        speech = slice(ids.first_id, ids.first_id + ids.rows)
        weight, bias = weight[speech], None if bias is None else bias[speech]
    if bias is None:
        logger.warning("%s stores no bias of the speech head; it has none", where)
        bias = torch.zeros(ids.rows)
    if weight is None or weight.shape[0] != ids.rows or bias.shape != (ids.rows,):
        found = None if weight is None else list(weight.shape)
        raise CheckpointError(
            f"{where}: the speech head is {found} with bias {list(bias.shape)}; expected {ids.rows} rows"
        )
    return weight, bias
