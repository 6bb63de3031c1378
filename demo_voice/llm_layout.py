"""Writes the demo LLM in the Hugging Face layout of the official one: same numbering, same files, other sizes.

The bundle stores only rows that are used; here they take their places in tables of 158,336 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from llm_service.checkpoint import (
    ENDOFTEXT,
    INDEX_FILE,
    INLINE_TOKENS,
    ROPE_THETA,
    WEIGHTS_FILE,
    generation_config,
    special_tokens_map,
    tokenizer_config,
    write_json,
)
from llm_service.config import SPEECH_HEAD_FILE
from llm_service.vocab import (
    END_IDS,
    END_TOKENS,
    PADDED_VOCABULARY_SIZE,
    SOS_ID,
    SOS_TOKEN,
    SPEECH_HEAD_ROWS,
    SPEECH_TOKEN_COUNT,
    SPEECH_TOKEN_OFFSET,
    TASK_ID,
    TASK_TOKEN,
    llm_id_from_speech_id,
    speech_token_text,
)

FloatArray = npt.NDArray[np.float32]
HalfArray = npt.NDArray[np.float16]

TEXT_TABLE, SPEECH_TABLE, CONTROL_TABLE = "text_embedding", "speech_embedding", "control_embedding"
"""[text rows, C]; [6561, C]; [2, C]: sos, then task_id."""
HEAD_WEIGHT, HEAD_BIAS = "head.weight", "head.bias"
"""[6564, C] and [6564]: speech tokens, then the three end tokens."""
NEVER = -30.0
"""Bias of the two reserved end tokens, which no training text asks for."""


@dataclass(frozen=True)
class DemoLLMShape:
    """Sizes of the decoder, as config.json names them."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    max_position_embeddings: int


def write_llm(
    directory: Path, shape: DemoLLMShape, tensors: Mapping[str, FloatArray], text_tokenizer: Mapping[str, Any]
) -> None:
    """Write weights, configuration and tokenizer into `directory` (made if missing).

    Args:
        directory: the LLM directory of a checkpoint.
        shape: the decoder's sizes.
        tensors: the tables and the head under the names above, the decoder's weights under Qwen2's own.
        text_tokenizer: a byte-level BPE as the `tokenizers` library saves it, without special tokens.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", _model_config(shape))
    write_json(directory / "generation_config.json", generation_config())
    write_json(directory / "tokenizer.json", _tokenizer(text_tokenizer))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    write_json(directory / "special_tokens_map.json", special_tokens_map())
    weights = _weights(tensors)
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(directory / INDEX_FILE, {"metadata": {}, "weight_map": dict.fromkeys(weights, WEIGHTS_FILE)})
    head: dict[str, npt.NDArray[Any]] = {
        "weight": tensors[HEAD_WEIGHT].astype(np.float16),
        "bias": _bias(tensors[HEAD_BIAS]),
    }
    save_file(head, directory / SPEECH_HEAD_FILE)


def _weights(tensors: Mapping[str, FloatArray]) -> dict[str, HalfArray]:
    tables = {TEXT_TABLE, SPEECH_TABLE, CONTROL_TABLE, HEAD_WEIGHT, HEAD_BIAS}
    weights: dict[str, HalfArray] = {
        f"model.{name}": value.astype(np.float16) for name, value in tensors.items() if name not in tables
    }
    width = tensors[HEAD_WEIGHT].shape[1]
    embedding = np.zeros((PADDED_VOCABULARY_SIZE, width), np.float16)
    embedding[: len(tensors[TEXT_TABLE])] = tensors[TEXT_TABLE]
    embedding[SPEECH_TOKEN_OFFSET : SPEECH_TOKEN_OFFSET + SPEECH_TOKEN_COUNT] = tensors[SPEECH_TABLE]
    embedding[[SOS_ID, TASK_ID]] = tensors[CONTROL_TABLE]
    head = np.zeros_like(embedding)
    head[SPEECH_TOKEN_OFFSET : SPEECH_TOKEN_OFFSET + SPEECH_HEAD_ROWS] = tensors[HEAD_WEIGHT]
    return {**weights, "model.embed_tokens.weight": embedding, "lm_head.weight": head}


def _bias(bias: FloatArray) -> FloatArray:
    changed = bias.astype(np.float32).copy()
    changed[SPEECH_TOKEN_COUNT + 1 :] = NEVER
    return changed


def _model_config(shape: DemoLLMShape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": PADDED_VOCABULARY_SIZE,
        **asdict(shape),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "bos_token_id": SOS_ID,
        "eos_token_id": END_IDS[0],
        "torch_dtype": "float16",
    }


def _tokenizer(text: Mapping[str, Any]) -> dict[str, Any]:
    """Add the special tokens with their official ids; they stand in the vocabulary too: only so may ids have holes."""
    special = _special_ids()
    model = {**text["model"], "vocab": {**text["model"]["vocab"], **special}}
    return {**text, "added_tokens": [_added(token, number) for token, number in special.items()], "model": model}


def _special_ids() -> dict[str, int]:
    text_tokens = (ENDOFTEXT, *INLINE_TOKENS)
    first = SPEECH_TOKEN_OFFSET - len(text_tokens)
    ids = {token: first + index for index, token in enumerate(text_tokens)}
    ids |= {speech_token_text(index): llm_id_from_speech_id(index) for index in range(SPEECH_TOKEN_COUNT)}
    return ids | dict(zip(END_TOKENS, END_IDS, strict=True)) | {SOS_TOKEN: SOS_ID, TASK_TOKEN: TASK_ID}


def _added(token: str, number: int) -> dict[str, Any]:
    # Speech tokens are not special: they show in decoded text.
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": number < SPEECH_TOKEN_OFFSET}
