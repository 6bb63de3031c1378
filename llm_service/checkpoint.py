"""Writes a random speech-token LLM in Hugging Face layout: the official numbering at a toy or at the official size.

It speaks noise; it is for tests, for seeing the whole path run and, at full size, for measuring speed. Head rows of
text tokens are zero. What is in the directory: `llm_service.huggingface_layout`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel

from llm_service.huggingface_layout import MAX_POSITIONS, special_ids, write_description, write_weights
from llm_service.qwen2 import DECODER_PREFIX, EMBEDDING, Qwen2Shape, decoder_tensors
from llm_service.speech_bounds import SpeechBounds, write_speech_bounds
from llm_service.speech_head import HEAD_WEIGHT, speech_rows
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT, SpeechVocabulary

# Spread of the random logits: wide enough that an answer is neither uniform noise nor one repeated token.
LOGIT_STD = 1.5
# An end token with this bias practically never comes.
NEVER_LOGIT = -12.0


@dataclass(frozen=True)
class LLMShape(Qwen2Shape):
    """Sizes of a random LLM, and how it ends."""

    max_positions: int = MAX_POSITIONS
    end_logit: float = NEVER_LOGIT  # bias of the first end token, beside the spread of the other logits


# About 43 MB; an answer ends after some tens of tokens.
SMALL_LLM = LLMShape(hidden=64, layers=2, heads=4, key_value_heads=2, feed_forward=128, end_logit=4.2)
# About 1.3 GB, the sizes of CosyVoice2-0.5B; an answer runs to its bound, so that its length is known.
OFFICIAL_LLM = LLMShape(hidden=896, layers=24, heads=14, key_value_heads=2, feed_forward=4864)


def make_random_llm(
    directory: Path, seed: int, shape: LLMShape = SMALL_LLM, vocabulary: SpeechVocabulary = COSYVOICE2
) -> None:
    """Write the random LLM and its tokenizer into `directory` (made if missing).

    Equal seeds and shapes give equal files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_description(directory, shape, _text_tokenizer(), "bfloat16", vocabulary)
    generator = torch.Generator().manual_seed(seed)
    head = _speech_head(shape, generator, vocabulary)
    write_weights(directory, _weights(shape, generator, head["weight"], vocabulary), head, save_file)
    write_speech_bounds(directory, SpeechBounds(follows_text=False))


def _speech_head(shape: LLMShape, generator: torch.Generator, vocabulary: SpeechVocabulary) -> dict[str, torch.Tensor]:
    # The final norm leaves hidden states of root mean square 1, so a row's logit has the row's norm as its spread.
    rows = vocabulary.head_rows
    weight = torch.randn(rows, shape.hidden, generator=generator) * (LOGIT_STD / shape.hidden**0.5)
    bias = torch.randn(rows, generator=generator) * 0.1
    weight[SPEECH_TOKEN_COUNT:] *= 0.1
    bias[SPEECH_TOKEN_COUNT:] = NEVER_LOGIT
    bias[vocabulary.eos_id - vocabulary.first_id] = shape.end_logit
    return {"weight": weight.to(torch.bfloat16), "bias": bias}


def _weights(
    shape: LLMShape, generator: torch.Generator, head: torch.Tensor, vocabulary: SpeechVocabulary
) -> dict[str, torch.Tensor]:
    def made(name: str, size: tuple[int, ...]) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(size, dtype=torch.bfloat16)
        spread: float = size[-1] ** -0.5
        return (torch.randn(size, generator=generator) * spread).to(torch.bfloat16)

    lm_head = torch.zeros(vocabulary.table_rows, shape.hidden, dtype=torch.bfloat16)
    lm_head[speech_rows(vocabulary)] = head
    weights = {EMBEDDING: _embedding(shape.hidden, generator, vocabulary), HEAD_WEIGHT: lm_head}
    return weights | {DECODER_PREFIX + name: made(name, size) for name, size in decoder_tensors(shape).items()}


def _embedding(hidden: int, generator: torch.Generator, vocabulary: SpeechVocabulary) -> torch.Tensor:
    """Rows that no token uses stay zero, so that the file compresses well."""
    table = torch.zeros(vocabulary.table_rows, hidden, dtype=torch.bfloat16)
    used = torch.tensor(sorted([*_text_vocabulary().values(), *special_ids(vocabulary).values()]))
    table[used] = torch.randn(len(used), hidden, generator=generator).to(torch.bfloat16)
    return table


def _text_vocabulary() -> dict[str, int]:
    """Return the characters that byte-level BPE writes bytes as, in Qwen2's order: printable ones first."""
    return {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}


def _text_tokenizer() -> dict[str, Any]:
    """Bytes alone, without merges."""
    tokenizer = Tokenizer(BPE(_text_vocabulary(), []))
    tokenizer.normalizer, tokenizer.decoder = NFC(), decoders.ByteLevel()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    return description
