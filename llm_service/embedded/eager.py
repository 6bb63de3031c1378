"""Steps in plain torch, one after the other: what a CPU serves with, and the reference of the GPU's engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard, TokenSampler
from llm_service.embedded.schedule import SchedulePolicy
from llm_service.embedded.steps import BROKEN, Ints, PromptPiece, RunnerLimits
from llm_service.vocab import COSYVOICE2, SpeechVocabulary
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

Logits = npt.NDArray[np.float32]

_AS_FAST_AS_CAN_BE = SchedulePolicy(
    free_rows=1 << 31, piece_tokens=1 << 31, burst_piece_tokens=1 << 31, keeps_pace=False
)


def eager_engine(
    model: SpeechLanguageModel,
    limits: EngineLimits,
    guard: RepetitionGuard,
    clock: Clock,
    vocabulary: SpeechVocabulary = COSYVOICE2,
    max_step_tokens: int = 8192,
) -> SpeechLMEngine:
    """Make an engine on a model whose cache holds `limits`; prompts of a step have `max_step_tokens` together."""
    runner = EagerRunner(model, limits.slots, vocabulary, max_step_tokens)
    return SpeechLMEngine(runner, limits, guard, clock, vocabulary, policy=_AS_FAST_AS_CAN_BE, wait_share=0.0)


@dataclass(frozen=True)
class _Drawn:
    rows: list[int]

    def tokens(self) -> list[int]:
        return self.rows


@dataclass
class _Slot:
    """One answer between its steps."""

    sampler: TokenSampler
    position: int = 0  # of the token drawn last
    latest: int = 0  # its LLM id


class EagerRunner:
    """Runs steps at once; what fails in a step is drawn again alone, so that only the request at fault fails."""

    def __init__(
        self, model: SpeechLanguageModel, slots: int, vocabulary: SpeechVocabulary, max_step_tokens: int
    ) -> None:
        self.limits = RunnerLimits(slots, max_step_tokens, slots, vocabulary.table_rows, is_immediate=True)
        self._model, self._first_id = model, vocabulary.first_id
        self._slots: dict[int, _Slot] = {}

    def prompt(self, pieces: Sequence[PromptPiece]) -> _Drawn:
        """Run pieces of prompts; a row is drawn for each that ends its prompt, in their order."""
        rows: list[int] = []
        for piece in pieces:
            if piece.start is not None and piece.first_position:
                self._slots[piece.slot].sampler.go_on(piece.start)
            elif piece.start is not None:
                self._slots[piece.slot] = _Slot(TokenSampler(piece.start))
            logits = self._prefilled(piece)
            self._slots[piece.slot].position = piece.first_position + len(piece.token_ids)
            rows += [self._drawn(piece.slot, logits)] if piece.ends else []
        return _Drawn(rows)

    def decode(self, slots: Ints) -> _Drawn:
        """Advance slots by a token each."""
        rows = [DecodeRow(slot, self._slots[slot].latest, self._slots[slot].position) for slot in slots.tolist()]
        decoded = self._decoded(rows)
        for row in rows:
            self._slots[row.slot].position += 1
        return _Drawn([self._drawn(row.slot, logits) for row, logits in zip(rows, decoded, strict=True)])

    def _prefilled(self, piece: PromptPiece) -> Logits | None:
        further = (piece.first_position,) if piece.first_position else ()
        try:
            return self._model.prefill(piece.slot, piece.token_ids.tolist(), *further)
        except Exception:
            logger.exception("a prompt of %d tokens failed", len(piece.token_ids))
            return None

    def _decoded(self, rows: Sequence[DecodeRow]) -> list[Logits | None]:
        """Return logits; None where a row fails alone too. Writing the same keys and values again does no harm."""
        try:
            return list(self._model.decode(rows))
        except Exception:
            logger.exception("a step of %d requests failed", len(rows))
            return [None] if len(rows) == 1 else [logits for row in rows for logits in self._decoded([row])]

    def _drawn(self, slot: int, logits: Logits | None) -> int:
        row = BROKEN if logits is None else self._slots[slot].sampler.sample(logits)
        if row < 0:
            self._model.clear_slot(slot)
        self._slots[slot].latest = row + self._first_id
        return row
