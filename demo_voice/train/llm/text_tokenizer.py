"""The LLM's text tokenizer: lower case, single digits, and a few hundred merges of bytes learnt from the corpus.

Few merges, because a new word must be read from its letters; not none, because the length bounds of an answer count
at least two speech tokens to a text token, and a letter alone often has less.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_STRAIGHT = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": ", ", "…": "..."}
"""Typographic marks, as texts on the web have them, to what the corpus knows."""


def train_text_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn merges until the vocabulary has `size` entries, 256 of them bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_text_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write it as the `tokenizers` library does; without special tokens, which `llm_layout` adds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path), pretty=False)


def _normalizer() -> Any:
    straighten = [normalizers.Replace(mark, plain) for mark, plain in _STRAIGHT.items()]
    return normalizers.Sequence([normalizers.NFC(), *straighten, normalizers.Lowercase()])


def _pre_tokenizer() -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
