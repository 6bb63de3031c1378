"""One request inside the GPU engine: what the device must know of it, and what may be handed out. Knows no tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from llm_service.embedded.interleaving import Feed, Interleaver
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.stop_strings import Released, StopStringFilter
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest
from llm_service.gpu.slot_state import BANNED, CLOSING, SEEN, AnswerStart
from llm_service.gpu.weights import SpeechIds
from llm_service.vocab import END_TOKENS, SpeechVocabulary, speech_token_text

_ROUNDING = 1e-9


@dataclass(frozen=True)
class EventPacking:
    """How many tokens one output carries: fewer and larger events cost less CPU.

    A head start, which its caller needs whole, is one output.
    """

    single_tokens: int = 20
    """First tokens that are sent one by one where no head start is asked for: the first audio waits for at most 18."""
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
        self.prompt_begin = 0  # the prompt's first position
        self.prompted = 0  # tokens of the prompt that were launched
        self.draws_behind = True  # whether a token is drawn behind the prompt
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

    @property
    def most_tokens(self) -> int:
        """How long it may be."""
        return self.request.params.max_tokens

    def start(self, guard: RepetitionGuard) -> AnswerStart:
        """Return what the device must know."""
        drawn = self.request.continued_tokens
        rows = self.prompt - self._ids.first_id
        return self._start(guard, rows[len(rows) - drawn :].tolist())

    def _start(
        self, guard: RepetitionGuard, drawn_rows: Sequence[int], barred_now: Collection[int] = ()
    ) -> AnswerStart:
        """Return what the device must know, after so many draws; `barred_now` can't be drawn before the next start."""
        params, ids = self.request.params, self._ids
        rows = np.array(self.request.prompt_ids, np.int32) - ids.first_id
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
        flags[list(barred_now)] |= BANNED
        flags[list(drawn_rows)] |= SEEN
        drawn = len(drawn_rows)
        return AnswerStart(
            slot=self.slot,
            seed=params.seed,
            prompt_tokens=self.prompt_begin + len(self.prompt),
            drawn=drawn,
            min_tokens=self.least_draws(params.min_tokens),
            window=guard.window_tokens,
            repeat_limit=math.ceil(guard.window_tokens * guard.tau - _ROUNDING),
            top_k=max(params.top_k, 0),
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            penalty=params.repetition_penalty,
            recent_rows=tuple(drawn_rows),
            pages=self.pages,
            flags=flags,
        )

    def least_draws(self, min_tokens: int) -> int:
        """Return the draws before which it can't end, those of `continued_tokens` among them."""
        return self.request.continued_tokens + min_tokens

    def _rows_of(self, token_ids: frozenset[int]) -> list[int]:
        rows = (token_id - self._ids.first_id for token_id in token_ids)
        return [row for row in rows if 0 <= row < self._ids.rows]

    def flush(self, reason: FinishReason | None = None, stop_reason: str | int | None = None) -> GenerationOutput:
        """Hand out what is pending."""
        rows, self.pending = self.pending, []
        return self._output(rows, self._texts.of(rows) if self.request.wants_text else "", reason, stop_reason)

    def accept_closely(self, row: int) -> GenerationOutput | None:
        """Take a row that may end the answer, or one of an answer with stop strings, or one whose text is to come.

        Returns:
            What may be handed out.
        """
        first_id, params = self._ids.first_id, self.request.params
        if row in self.closing_rows:
            if self.stops is not None:
                self.pending += [token_id - first_id for token_id in self.stops.flush().token_ids]
            if params.include_end_token:
                self.pending.append(row)
            return self.flush(FinishReason.STOP, row + first_id)
        if self.stops is None:
            self.pending.append(row)
            return self.flush(FinishReason.LENGTH if self.generated >= self.most_tokens else None)
        released = self.stops.push(row + first_id, self._texts.of([row]))
        if released.stop is not None:
            return self._released(released, FinishReason.STOP, released.stop)
        if self.generated >= self.most_tokens:
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


class Next(Enum):
    """The next step of an answer whose text comes while it is spoken."""

    TEXT = auto()
    """The answer waits for more text."""
    PROMPT = auto()
    """The answer reads the tokens in `prompt`."""
    DECODE = auto()
    """The answer goes on from the token drawn last, which the device has."""


class InterleavedAnswer(Answer):
    """An answer whose text comes while it is spoken. Each token is read before it is known what goes in next.

    Its prompt is what is fed next: the begin, then text with the tokens drawn before it, from `prompt_begin` on.
    """

    def __init__(
        self,
        request: GenerationRequest,
        ids: SpeechIds,
        texts: TokenTexts,
        arrived_s: float,
        vocabulary: SpeechVocabulary,
        positions: int,
    ) -> None:
        """Begin; `positions` are those that it may have in the cache.

        Raises:
            InvalidGenerationError: the prompt is not laid out as the request says.
        """
        super().__init__(request, ids, texts, arrived_s)
        assert request.interleaved is not None
        layout, continued = (request.prompt_ids, request.interleaved, vocabulary), request.continued_tokens
        self._interleaver = Interleaver(*layout, positions, continued)
        self._positions = positions
        self._drawn_rows: list[int] = (self.prompt[len(self.prompt) - continued :] - ids.first_id).tolist()
        self._fill_row = vocabulary.fill_id - ids.first_id
        self.waits_for_text = False

    @property
    def most_positions(self) -> int:
        """All that there may be: nobody knows how much text will come."""
        return self._positions

    @property
    def most_tokens(self) -> int:
        """How long it may be; its text bounds it once it is whole."""
        return self._interleaver.most_tokens(super().most_tokens, self.generated)

    def push(self, text_ids: Collection[int], is_last: bool) -> None:
        """Take more text.

        Raises:
            InvalidGenerationError: the last came already, there is no room for it, or it is no text.
        """
        self._interleaver.push(text_ids, is_last)

    def note(self, row: int) -> bool:
        """Note a row that was drawn; return whether it is one of the answer's, and no request for text."""
        self._drawn_rows.append(row)
        if row == self._fill_row and not self._interleaver.is_closed:
            self._interleaver.note_fill()
            return False
        if row not in self.closing_rows:
            self._interleaver.note(row + self._ids.first_id)
        return True

    def go_on(self) -> Next:
        """Decide what goes into the LLM next, which then counts as fed."""
        begin = self._interleaver.fed_tokens
        feed = self._interleaver.take()
        self.waits_for_text = feed is None
        if feed is None:
            return Next.TEXT
        self.prompt_begin = begin
        if self._is_drawn_last(feed):
            return Next.DECODE
        self.prompt, self.prompted = np.array(feed.token_ids, np.int32), 0
        self.draws_behind = feed.draws
        return Next.PROMPT

    def start(self, guard: RepetitionGuard) -> AnswerStart:
        """Return what the device must know from here on."""
        barred = frozenset() if self._interleaver.is_closed else self.closing_rows - {self._fill_row}
        return self._start(guard, self._drawn_rows, barred)

    def least_draws(self, min_tokens: int) -> int:
        """Return the draws before which it can't end; those that asked for text are no tokens of it."""
        return min_tokens + len(self._drawn_rows) - self.generated

    def _is_drawn_last(self, feed: Feed) -> bool:
        if not (feed.draws and len(feed.token_ids) == 1 and self._drawn_rows):
            return False
        return feed.token_ids[0] == self._drawn_rows[-1] + self._ids.first_id
