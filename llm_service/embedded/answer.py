"""One request inside the engine: what its steps must know of it, and what may be handed out. Knows no tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from enum import Enum, auto

import numpy as np

from llm_service.embedded.interleaving import WHOLE_TEXT, Feed, Interleaver
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.steps import BANNED, CLOSING, SEEN, AnswerStart
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest
from llm_service.errors import InvalidGenerationError
from llm_service.vocab import SPEECH_TOKENS_PER_SECOND, SpeechVocabulary

_ROUNDING = 1e-9
WAIT_SHARE = 1 / 6
"""Share of a listener's lead for which tokens wait, twice of what is over 1 s: few, large outputs cost less CPU."""
_LONG_LEAD_S = 1.0
_SOUNDLESS_TOKENS = 6
"""Tokens at the end of which there is no sound yet: token2wav's look-ahead, and what its vocoder holds back, less one,
as the first chunk takes its time."""


def output_wait_s(tokens: int, since_first_s: float, share: float = WAIT_SHARE) -> float:
    """Return for how many seconds tokens may wait behind an output; 0 or less: not at all.

    Args:
        tokens: of the answer, that output included.
        since_first_s: seconds since the first of them.
        share: see `WAIT_SHARE`; 0: none waits.
    """
    lead_s = (tokens - _SOUNDLESS_TOKENS) / SPEECH_TOKENS_PER_SECOND - since_first_s
    return share * (lead_s + max(lead_s - _LONG_LEAD_S, 0.0))


class Next(Enum):
    """What an answer does next."""

    TEXT = auto()
    """It waits for more text."""
    PROMPT = auto()
    """It reads the tokens in `prompt`."""
    DECODE = auto()
    """It goes on from the token drawn last, which the device has."""


class Answer:
    """A request from its arrival to its last token. The engine reads and writes its fields.

    If its text is still to come, `prompt` is what is fed next: the begin, then text with the tokens drawn before it,
    from `prompt_begin` on; and each token is read before it is known what goes in next.
    """

    def __init__(
        self,
        request: GenerationRequest,
        vocabulary: SpeechVocabulary,
        arrived_s: float,
        positions: int,
    ) -> None:
        """Begin.

        Args:
            request: checked, but for the layout of one whose text is to come.
            vocabulary: the checkpoint's.
            arrived_s: when it came.
            positions: that it may have in the cache.

        Raises:
            InvalidGenerationError: it is not laid out as it says.
        """
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
        self.waits_for_text = False
        self._vocabulary, self._positions = vocabulary, positions
        self._interleaver: Interleaver | None = None
        if request.interleaved is not None:
            layout = (request.prompt_ids, request.interleaved, vocabulary)
            self._interleaver = Interleaver(*layout, positions, request.continued_tokens)
        continued = len(self.prompt) - request.continued_tokens
        self._drawn_rows: list[int] = (self.prompt[continued:] - vocabulary.first_id).tolist()
        """Rows drawn elsewhere; if text is to come, all rows drawn so far."""
        self._end_rows = self._rows_of(vocabulary.end_ids)
        self.closing_rows = frozenset((*self._end_rows, *self._rows_of(request.params.stop_token_ids)))

    @property
    def is_interleaved(self) -> bool:
        """Whether its text comes while it is spoken."""
        return self._interleaver is not None

    @property
    def most_positions(self) -> int:
        """Places in the cache that it may need; all that there may be where nobody knows how much text will come."""
        return self._positions if self.is_interleaved else len(self.prompt) + self.request.params.max_tokens

    @property
    def most_tokens(self) -> int:
        """How long it may be; a text that came in pieces bounds it once it is whole."""
        asked = self.request.params.max_tokens
        return asked if self._interleaver is None else self._interleaver.most_tokens(asked, self.generated)

    def push(self, text_ids: Collection[int], is_last: bool) -> None:
        """Take more text.

        Raises:
            InvalidGenerationError: it takes none, the last came already, there is no room for it, or it is no text.
        """
        if self._interleaver is None:
            raise InvalidGenerationError(WHOLE_TEXT)
        self._interleaver.push(text_ids, is_last)

    def note(self, row: int) -> bool:
        """Note a row that was drawn; return whether it is one of the answer's, and no request for text."""
        if self._interleaver is None:
            return True
        self._drawn_rows.append(row)
        token_id = row + self._vocabulary.first_id
        if self._interleaver.is_fill(token_id):
            self._interleaver.note_fill()
            return False
        if row not in self.closing_rows:
            self._interleaver.note(token_id)
        return True

    def go_on(self) -> Next:
        """Decide what goes into the LLM next, which then counts as fed."""
        if self._interleaver is None:
            return Next.PROMPT
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
        """Return what its steps must know from here on."""
        params, head_rows = self.request.params, self._vocabulary.head_rows
        flags = np.zeros(head_rows, np.int8)
        rows = np.array(self.request.prompt_ids) - self._vocabulary.first_id
        flags[rows[(rows >= 0) & (rows < head_rows)]] = SEEN
        flags[list(self.closing_rows)] |= CLOSING
        if params.ignore_eos:
            flags[self._end_rows] |= BANNED
        if params.allowed_token_ids is not None:
            is_barred = np.ones(head_rows, bool)
            is_barred[self._rows_of(params.allowed_token_ids)] = False
            flags[is_barred] |= BANNED
        flags[self._barred_now()] |= BANNED
        flags[self._drawn_rows] |= SEEN
        drawn = len(self._drawn_rows)
        return AnswerStart(
            slot=self.slot,
            seed=params.seed,
            prompt_tokens=self.prompt_begin + len(self.prompt),
            drawn=drawn,
            # Counted with the rows drawn before, but for requests for text, which are no tokens of the answer.
            min_tokens=params.min_tokens + drawn - self.generated,
            window=guard.window_tokens,
            repeat_limit=math.ceil(guard.window_tokens * guard.tau - _ROUNDING),
            top_k=max(params.top_k, 0),
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            penalty=params.repetition_penalty,
            recent_rows=tuple(self._drawn_rows),
            pages=self.pages,
            flags=flags,
        )

    def flush(self, reason: FinishReason | None = None, stop_reason: int | None = None) -> GenerationOutput:
        """Hand out what is pending."""
        rows, self.pending = self.pending, []
        first_id = self._vocabulary.first_id
        ids = tuple([row + first_id for row in rows])
        return GenerationOutput(self.request.request_id, ids, reason, stop_reason)

    def accept_closely(self, row: int) -> GenerationOutput:
        """Take a row that may end the answer, or one whose text is to come; return what may be handed out."""
        if row in self.closing_rows:
            return self.flush(FinishReason.STOP, row + self._vocabulary.first_id)
        self.pending.append(row)
        return self.flush(FinishReason.LENGTH if self.generated >= self.most_tokens else None)

    def _barred_now(self) -> list[int]:
        """Return the rows that can't be drawn before the next start: the answer must not end before its text."""
        if self._interleaver is None or self._interleaver.is_closed:
            return []
        return [row for row in self.closing_rows if not self._interleaver.is_fill(row + self._vocabulary.first_id)]

    def _rows_of(self, token_ids: Iterable[int]) -> list[int]:
        """Return the head rows of those ids that have one."""
        rows = (token_id - self._vocabulary.first_id for token_id in token_ids)
        return [row for row in rows if 0 <= row < self._vocabulary.head_rows]

    def _is_drawn_last(self, feed: Feed) -> bool:
        if not (feed.draws and len(feed.token_ids) == 1 and self._drawn_rows):
            return False
        return feed.token_ids[0] == self._drawn_rows[-1] + self._vocabulary.first_id
