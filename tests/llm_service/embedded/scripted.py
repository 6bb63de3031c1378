"""A model for one request at a time that says what it wants to be drawn, and remembers what it was fed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_service.embedded.eager import Logits
from llm_service.embedded.model import DecodeRow
from llm_service.vocab import SpeechVocabulary


class ScriptedModel:
    """Remembers what is fed; wants 100, 101, 102, ... and then the end, and before all a draw's wish."""

    def __init__(self, vocabulary: SpeechVocabulary, length: int, wishes: dict[int, int] | None = None) -> None:
        self._vocabulary, self._length, self.wishes = vocabulary, length, wishes or {}
        self.fed: list[int] = []

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> Logits:
        if start == 0:
            self.fed.clear()
        assert start == len(self.fed), "positions have no gap"
        self.fed += token_ids
        return self._logits()

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        (row,) = rows
        assert row.position == len(self.fed)
        self.fed.append(row.token_id)
        return [self._logits()]

    def clear_slot(self, slot: int) -> None:
        raise AssertionError("nothing fails here")

    def _logits(self) -> Logits:
        """Nothing tells a model whether a token will be drawn, so what it wants goes by what was drawn."""
        drawn = sum(1 for token in self.fed if 100 <= token - self._vocabulary.first_id < 900)
        logits = np.full(self._vocabulary.head_rows, -50.0, np.float32)
        end = self._vocabulary.eos_id - self._vocabulary.first_id
        logits[100 + drawn if drawn < self._length else end] = 5.0
        if drawn in self.wishes:
            logits[self.wishes[drawn] - self._vocabulary.first_id] = 9.0
        return logits
