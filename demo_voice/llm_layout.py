"""Writes the demo LLM in the Hugging Face layout of the official one: same numbering, same files, other sizes.

The bundle stores only rows that are used; here they take their places in tables of 158,336 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.huggingface_layout import WEIGHTS_FILE, write_description, write_weights_index
from llm_service.qwen2 import Qwen2Shape
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT
from servicekit.files import usual_mode

FloatArray = npt.NDArray[np.float32]
HalfArray = npt.NDArray[np.float16]

TEXT_TABLE, SPEECH_TABLE, CONTROL_TABLE = "text_embedding", "speech_embedding", "control_embedding"
"""[text rows, C]; [6561, C]; [2, C]: sos, then task_id."""
HEAD_WEIGHT, HEAD_BIAS = "head.weight", "head.bias"
"""[6564, C] and [6564]: speech tokens, then the three end tokens."""
NEVER = -30.0
"""Bias of the two reserved end tokens, which no training text asks for."""


def write_llm(
    directory: Path, shape: Qwen2Shape, tensors: Mapping[str, FloatArray], text_tokenizer: Mapping[str, Any]
) -> None:
    """Write weights, configuration and tokenizer into `directory` (made if missing).

    Args:
        tensors: the tables and the head under the names above, the decoder's weights under Qwen2's own.
        text_tokenizer: a byte-level BPE as the `tokenizers` library saves it, without special tokens.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_description(directory, shape, text_tokenizer, "float16")
    weights = _weights(tensors)
    with usual_mode(directory / WEIGHTS_FILE) as path:
        save_file(weights, path, metadata={"format": "pt"})
    write_weights_index(directory, weights)
    head: dict[str, npt.NDArray[Any]] = {
        "weight": tensors[HEAD_WEIGHT].astype(np.float16),
        "bias": _bias(tensors[HEAD_BIAS]),
    }
    with usual_mode(directory / SPEECH_HEAD_FILE) as path:
        save_file(head, path)


def _weights(tensors: Mapping[str, FloatArray]) -> dict[str, HalfArray]:
    tables = {TEXT_TABLE, SPEECH_TABLE, CONTROL_TABLE, HEAD_WEIGHT, HEAD_BIAS}
    weights: dict[str, HalfArray] = {
        f"model.{name}": value.astype(np.float16) for name, value in tensors.items() if name not in tables
    }
    width = tensors[HEAD_WEIGHT].shape[1]
    embedding = np.zeros((COSYVOICE2.table_rows, width), np.float16)
    embedding[: len(tensors[TEXT_TABLE])] = tensors[TEXT_TABLE]
    embedding[COSYVOICE2.first_id : COSYVOICE2.first_id + SPEECH_TOKEN_COUNT] = tensors[SPEECH_TABLE]
    embedding[[COSYVOICE2.sos_id, COSYVOICE2.task_id]] = tensors[CONTROL_TABLE]
    head = np.zeros_like(embedding)
    head[speech_rows(COSYVOICE2)] = tensors[HEAD_WEIGHT]
    return {**weights, "model.embed_tokens.weight": embedding, "lm_head.weight": head}


def _bias(bias: FloatArray) -> FloatArray:
    changed = bias.astype(np.float32).copy()
    changed[SPEECH_TOKEN_COUNT + 1 :] = NEVER
    return changed
