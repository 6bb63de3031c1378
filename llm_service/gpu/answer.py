"""One request inside the GPU engine: what the device must know of it, and what may be handed out. Knows no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.stop_strings import Released, StopStringFilter
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest
from llm_service.gpu.slot_state import BANNED, CLOSING, SEEN, AnswerStart
from llm_service.gpu.weights import SpeechIds
from llm_service.vocab import END_TOKENS, speech_token_text

_ROUNDING = 1e-9


@dataclass(frozen=True)
class EventPacking:
    """How many tokens one output carries: fewer and larger events cost everybody less."""

    single_tokens: int = 20
    """The first so many come one by one: the first audio waits for them, and has at most 18."""
    most_tokens: int = 16
    longest_wait_s: float = 0.05


class TokenTexts:
    """The text of every head row of a checkpoint."""

    def __init__(self, ids: SpeechIds) -> None:
        first_end = min(ids.end_rows)
        self._texts = [speech_token_text(row) for row in range(first_end)]
        self._texts += [END_TOKENS[min(index, len(END_TOKENS) - 1)] for index in range(ids.rows - first_end)]

    def of(self, rows: list[int]) -> str:
        """Return the text of some rows."""
        return "".join([self._texts[row] for row in rows])


class Answer:
    """A request from its arrival to its last token. The engine reads and writes its fields."""

    def __init__(self, request: GenerationRequest, ids: SpeechIds, texts: TokenTexts, arrived_s: float) -> None:
        self.request = request
        self.arrived_s = arrived_s
        self.prompt = np.array(request.prompt_ids, np.int32)
        self.prompted = 0  # tokens of the prompt that were launched
        self.slot = -1
        self.pages: tuple[int, ...] = ()
        self.is_over = False
        self.generated = 0
        self.pending: list[int] = []  # head rows not handed out yet
        self.flush_s = 0.0
        self._ids, self._texts = ids, texts
        stops = {token_id - ids.first_id for token_id in request.params.stop_token_ids}
        self.closing_rows = frozenset(ids.end_rows) | {row for row in stops if 0 <= row < ids.rows}
        self.stops = StopStringFilter(request.params.stop) if request.params.stop else None

    @property
    def priority(self) -> int:
        """1 begins first."""
        return self.request.priority

    @property
    def most_positions(self) -> int:
        """Places in the cache that it may need."""
        return len(self.prompt) + self.request.params.max_tokens

    def start(self, guard: RepetitionGuard) -> AnswerStart:
        """Return what the device must know."""
        request, params, ids = self.request, self.request.params, self._ids
        rows = self.prompt - ids.first_id
        heard = rows[(rows >= 0) & (rows < ids.rows)]
        flags = np.zeros(ids.rows, np.int8)
        flags[heard] = SEEN
        flags[list(self.closing_rows)] |= CLOSING
        if params.ignore_eos:
            flags[list(ids.end_rows)] |= BANNED
        if params.allowed_token_ids is not None:
            is_barred = np.ones(ids.rows, bool)
            is_barred[self._rows_of(params.allowed_token_ids)] = False
            flags[is_barred] |= BANNED
        flags[self._rows_of(params.banned_token_ids)] |= BANNED
        drawn = request.continued_tokens
        return AnswerStart(
            slot=self.slot,
            seed=params.seed,
            prompt_tokens=len(self.prompt),
            drawn=drawn,
            min_tokens=drawn + params.min_tokens,
            window=guard.window_tokens,
            repeat_limit=math.ceil(guard.window_tokens * guard.tau - _ROUNDING),
            top_k=max(params.top_k, 0),
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            penalty=params.repetition_penalty,
            recent_rows=tuple(rows[len(rows) - drawn :].tolist()),
            pages=self.pages,
            flags=flags,
        )

    def _rows_of(self, token_ids: frozenset[int]) -> list[int]:
        rows = (token_id - self._ids.first_id for token_id in token_ids)
        return [row for row in rows if 0 <= row < self._ids.rows]

    def flush(self, reason: FinishReason | None = None, stop_reason: str | int | None = None) -> GenerationOutput:
        """Hand out what is pending."""
        rows, self.pending = self.pending, []
        return self._output(rows, self._texts.of(rows) if self.request.wants_text else "", reason, stop_reason)

    def accept_closely(self, row: int) -> GenerationOutput | None:
        """Take a row that may end the answer, or one of an answer with stop strings; return what may be handed out."""
        first_id, params = self._ids.first_id, self.request.params
        if row in self.closing_rows:
            if self.stops is not None:
                self.pending += [token_id - first_id for token_id in self.stops.flush().token_ids]
            if params.include_end_token:
                self.pending.append(row)
            return self.flush(FinishReason.STOP, row + first_id)
        assert self.stops is not None
        released = self.stops.push(row + first_id, self._texts.of([row]))
        if released.stop is not None:
            return self._released(released, FinishReason.STOP, released.stop)
        if self.generated >= params.max_tokens:
            rest = self.stops.flush()
            whole = Released(released.token_ids + rest.token_ids, released.text + rest.text)
            return self._released(whole, FinishReason.LENGTH)
        return self._released(released) if released.token_ids or released.text else None

    def _released(
        self, released: Released, reason: FinishReason | None = None, stop_reason: str | None = None
    ) -> GenerationOutput:
        rows = [token_id - self._ids.first_id for token_id in released.token_ids]
        return self._output(rows, released.text, reason, stop_reason)

    def _output(
        self, rows: list[int], text: str, reason: FinishReason | None, stop_reason: str | int | None
    ) -> GenerationOutput:
        first_id = self._ids.first_id
        ids = tuple([row + first_id for row in rows])
        return GenerationOutput(self.request.request_id, ids, text, reason, stop_reason)
