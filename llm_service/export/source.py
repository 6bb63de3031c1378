"""What is converted, wherever it comes from: decoder, embedding, speech head and tokenizer of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from llm_service.errors import CheckpointError
from llm_service.qwen2 import Qwen2Shape
from llm_service.speech_head import SpeechHead
from llm_service.vocab import (
    END_IDS,
    END_TOKENS,
    PADDED_VOCABULARY_SIZE,
    SOS_ID,
    SOS_TOKEN,
    SPEECH_TOKEN_OFFSET,
    TASK_ID,
    TASK_TOKEN,
    speech_token_text,
)

# Tokens that the model can't do without; the first speech token stands for all.
SPECIAL_IDS = {
    speech_token_text(0): SPEECH_TOKEN_OFFSET,
    END_TOKENS[0]: END_IDS[0],
    SOS_TOKEN: SOS_ID,
    TASK_TOKEN: TASK_ID,
}


@dataclass(frozen=True)
class SpeechLMSource:
    """A speech-token LLM, read and checked. Tensors have the source's dtypes and may still lie on disk."""

    shape: Qwen2Shape
    decoder: Mapping[str, torch.Tensor]  # named as in Transformers' Qwen2Model; no embedding
    embedding: torch.Tensor  # [158336, hidden], row = LLM id
    head: SpeechHead
    tokenizer_files: Mapping[str, str]  # file name -> text


def check_special_rows(embedding: torch.Tensor, where: Path) -> None:
    """Check that the embedding knows the special tokens.

    Raises:
        CheckpointError: the table has another size, or a special token's row is all zero: it was never filled in.
    """
    rows = embedding.shape[0]
    if rows != PADDED_VOCABULARY_SIZE:
        raise CheckpointError(f"{where}: the embedding has {rows} rows, expected {PADDED_VOCABULARY_SIZE}")
    for token, token_id in SPECIAL_IDS.items():
        if not embedding[token_id].any():
            raise CheckpointError(f"{where}: the embedding of {token} (row {token_id}) is all zero; wrong numbering?")
