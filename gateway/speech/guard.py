"""Asks the LLM for one segment, and asks again where the speech tokens show that the speech leaves its text.

    answer 1   [ given out to token2wav | held back | trouble        not spoken yet: thrown away
    answer 2                            | again again again end

What is held back follows from the tokens alone, never from time, so that equal seeds give equal speech. The first chunk
is held back until it is whole, where an aligner hears its words or the text may end in it; else not at all. A new
answer goes on behind what was given out, as one does that another replica takes over, and draws with a seed that
follows from the segment's. Where no answer is good, the speech ends at the last good place. Words that the text does
not have are left out of an answer, which goes on.

A text may still be written meanwhile. Then each answer gets what was taken of it and goes on with the rest; nothing is
held back, and how long the speech may be is judged, once the text is whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from gateway.core import Sampling, SpeechLM, SpeechTokenDelta, Utterance
from gateway.llm.length import SpeechLength, usual_speech
from gateway.speech.letter_times import SpokenWords
from gateway.speech.request import LENGTH_FINISH, MAX_SEED, STOP_FINISH, GuardNote, GuardOutcome
from llm_service.aligner import Aligner
from llm_service.speech_bounds import SpeechBounds
from servicekit.tasks import Line

LOOP_GRAM_TOKENS = 4
"""160 ms. Two draws of one word are hardly ever equal for so long, even where the text repeats it."""
LOOP_COUNT = 4
"""More equal grams are a loop, unless the text itself says a word again and again."""
SILENCE_TOKENS = 40
"""1.6 s: longer than a pause between sentences."""
_KEPT_SILENCE_TOKENS = 8
MOST_HELD_TOKENS = 75
"""3 s: below the 5 s that our own LLM engine runs ahead of a listener."""
_HELD_DIVISOR = 3
"""An LLM a third faster than speech is far enough ahead after n tokens to have n / 3 of them held back."""
_TOKENS_A_TURN = 50
"""2 s: judging its words keeps the event loop for a few milliseconds. Of longer messages one is judged at a time, and
others have turns in between."""
_SAMPLING = Sampling()
_SEED_STEP = 0x9E3779B97F4A7C15
"""Far from the seeds of the segments behind, which follow each other."""
# A word, or a character of a script that is written without blanks.
_WORD = re.compile("[^\\W\u3040-\U0003ffff]+|[\u3040-\U0003ffff]")


class GuardMode(str, Enum):
    """What the guard does."""

    OFF = "off"
    MEND = "mend"
    """It has what was not spoken yet spoken again."""


class Trouble(str, Enum):
    """How speech leaves its text."""

    LOOP = "loop"
    """The same sounds come again and again."""
    SILENCE = "silence"
    """It is silent for longer than any pause."""
    SHORT = "short"
    """It ends before the text can have been said."""
    LONG = "long"
    """It goes on when the text must have been said."""
    WORD = "word"
    """It leaves out a word, or says another one."""
    MORE = "more"
    """It says something twice, or something else between two words."""


class TroubleFound(NamedTuple):
    """A trouble, and up to where the answer is good."""

    trouble: Trouble
    good_tokens: int


@dataclass(frozen=True)
class GuardSettings:
    """How answers are guarded."""

    mode: GuardMode = GuardMode.OFF
    silent_tokens: frozenset[int] = frozenset()
    """The checkpoint's tokens (of 6561) that sound as silence; empty: not known, so the guard ignores silence."""
    redraws: int = 3
    """How often one segment is spoken again at most."""
    aligner: Aligner | None = None
    """The checkpoint's; None: no word is missed."""
    line: Line = field(default_factory=Line, compare=False)
    """Of answers whose long messages are judged."""

    @classmethod
    def of_checkpoint(cls, mode: GuardMode, bounds: SpeechBounds, aligner: Aligner | None) -> GuardSettings:
        """Return what suits a checkpoint: speech that follows no text is not held to one."""
        suits = GuardMode.OFF if bounds.follows_text is False else mode
        return cls(suits, frozenset(bounds.silent_tokens or ()), aligner=aligner)


@dataclass(frozen=True)
class SegmentAsk:
    """The request to the LLM for one segment."""

    utterance: Utterance
    seed: int
    stream_tokens: int
    """Given out before it in the stream."""
    free_tokens: int
    """In the stream's first chunk, look-ahead included."""

    def length_of(self, text: str, silent_tokens: frozenset[int] = frozenset()) -> SpeechLength:
        """Return how long a text takes in this voice; for `silent_tokens` see `GuardSettings`."""
        return usual_speech(text, self.utterance.reference_text, self.utterance.reference_tokens, silent_tokens)

    def free_of(self, count: int, length: SpeechLength | None) -> int:
        """Return how many of the segment's tokens, `count` so far, may be spoken; more than usual wait for the end."""
        if length is None:
            return count
        free = free_tokens(self.stream_tokens + count, self.free_tokens) - self.stream_tokens
        return min(free, max(length.usual, self.free_tokens - self.stream_tokens))


def free_tokens(position: int, first_chunk: int) -> int:
    """Return how many of the tokens of a stream, `position` so far, may be spoken; the first chunk's all may."""
    return position - min(MOST_HELD_TOKENS, max(position - first_chunk, 0) // _HELD_DIVISOR)


def repeats_in(text: str) -> int:
    """Return how often the text says its most frequent word."""
    return max(Counter(_WORD.findall(text.casefold())).values(), default=0)


def redraw_seed(seed: int, redraw: int) -> int:
    """Return the seed of a segment's answer; redraw 0 is the first answer."""
    return (seed + redraw * _SEED_STEP) % (MAX_SEED + 1)


class AnswerGuard:
    """Watches one answer, token by token."""

    def __init__(
        self, text: str, length: SpeechLength | None, settings: GuardSettings, kept: Sequence[int] = ()
    ) -> None:
        """Begin.

        Args:
            text: all that is to be said, as far as it is known, as the LLM gets it.
            length: the bounds of saying it; None: the text goes on, and bounds nothing.
            kept: tokens of an answer before that were given out; this one goes on behind them.
        """
        self._silent = settings.silent_tokens
        aligner = None if length is None else settings.aligner
        self._listen = None if aligner is None else partial(SpokenWords, aligner, text)
        self._words = None if self._listen is None else self._listen()
        self.grow(text, length)
        self._grams: dict[tuple[int, ...], list[int]] = {}
        self._silence = 0
        self.tokens: list[int] = []
        self.given = len(kept)
        """Tokens given out; no word among them is judged."""
        self.left_out: TroubleFound | None = None
        """The first of what it said beyond its text, which is not among the tokens any more."""
        for token_id in kept:
            self.push(token_id)

    def grow(self, text: str, length: SpeechLength | None) -> None:
        """Go by more of the text; see the begin."""
        self.length = length
        self._most_grams = max(LOOP_COUNT, 2 * repeats_in(text))

    def push(self, token_id: int) -> TroubleFound | None:
        """Take the next token (0..6560); return the trouble that it shows, if any."""
        self.tokens.append(token_id)
        count = len(self.tokens)
        self._silence = self._silence + 1 if token_id in self._silent else 0
        if self._silence > SILENCE_TOKENS:
            return TroubleFound(Trouble.SILENCE, count - self._silence + _KEPT_SILENCE_TOKENS)
        if count >= LOOP_GRAM_TOKENS and not self._silence:
            found = self._grams.setdefault(tuple(self.tokens[-LOOP_GRAM_TOKENS:]), [])
            found.append(count)
            if len(found) > self._most_grams:
                return TroubleFound(Trouble.LOOP, found[0])
        if self.length is not None and count > self.length.longest:
            return self._long(self.length)
        return self._strayed(is_over=False)

    def end(self, finish_reason: str) -> TroubleFound | None:
        """Take the end (`stop` or `length`); return the trouble with it, if any."""
        if self.length is None:
            return None  # no room for the rest of the text, which is no fault of the speech
        if finish_reason == LENGTH_FINISH:
            return self._long(self.length)
        strayed = self._strayed(is_over=True)
        count, sounding = len(self.tokens), sum(token_id not in self._silent for token_id in self.tokens)
        if count < self.length.shortest or sounding < self.length.least_sounding:
            return TroubleFound(Trouble.SHORT, count)
        slowest = self.length.slowest
        return TroubleFound(Trouble.LONG, count) if slowest is not None and count > slowest else strayed

    def _long(self, length: SpeechLength) -> TroubleFound:
        """Judge an answer that did not end: most likely its text ends in the pause next to the usual length."""
        usual = min(length.usual, len(self.tokens))
        pauses = (at for at in range(usual, len(self.tokens)) if self.tokens[at] in self._silent)
        end = next(pauses, usual)
        return TroubleFound(Trouble.LONG, end if end <= usual + SILENCE_TOKENS else usual)

    def _strayed(self, is_over: bool) -> TroubleFound | None:
        """Look for a word that is not said; what is said beyond the text is left out."""
        while self._words is not None and self._listen is not None:
            if (found := self._words.strayed(self.tokens, self.given, is_over)) is None:
                return None
            since, until = found
            if since == until:
                return TroubleFound(Trouble.WORD, since)
            # The pause around it stays.
            sounding = [at for at in range(since, until) if self.tokens[at] not in self._silent] or [since]
            del self.tokens[sounding[0] : sounding[-1] + 1]
            self._grams.clear()
            self._words = self._listen()
            self.left_out = self.left_out or TroubleFound(Trouble.MORE, sounding[0])
        return None


def guarded(
    llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings, on_note: Callable[[GuardNote], None]
) -> AsyncGenerator[SpeechTokenDelta]:
    """Yield the speech tokens of one segment; the last delta, and only it, has a finish_reason.

    Args:
        on_note: is told of a trouble, once it is known what became of it.

    Raises:
        LLMError: see `SpeechLM.generate`.
    """
    if settings.mode is GuardMode.OFF:
        return llm.generate(ask.utterance, _SAMPLING, ask.seed)
    return _Mending(llm, ask, settings).answers(on_note)


class _Mending:
    """One segment, by as many answers as it takes."""

    def __init__(self, llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings) -> None:
        self._llm, self._ask, self._settings = llm, ask, settings
        self._coming = ask.utterance.coming_text
        self._kept: list[int] = []
        """Tokens that were given out before the latest answer."""
        self._guard: AnswerGuard | None = None
        """Of the latest answer; made when its first tokens are here, as the LLM need not wait for it."""
        self._fills: list[int] = []
        self._verdict: TroubleFound | None = None
        """Of the latest answer; None: it is good."""
        self._finish_reason = STOP_FINISH
        self._misses_word = False
        """Whether the last answer that there may be misses a word."""
        self._held_first = self._first_held()
        """Tokens of the stream's first chunk, none of which is given out before all are here."""

    async def answers(self, on_note: Callable[[GuardNote], None]) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield what may be spoken of one answer after the other, until one is good."""
        first: TroubleFound | None = None
        utterance = self._ask.utterance
        if utterance.head_start_tokens:
            utterance = replace(utterance, head_start_tokens=max(utterance.head_start_tokens, self._held_first))
        for redraw in range(self._settings.redraws + 1):
            if self._guard is not None:
                self._kept = self._guard.tokens[: self._guard.given]
                self._fills = [place for place in self._fills if place < len(self._kept)]
            self._guard, self._verdict = None, None
            asked, seed = utterance.behind(self._kept, self._fills), redraw_seed(self._ask.seed, redraw)
            async with aclosing(self._llm.generate(asked, _SAMPLING, seed)) as deltas:
                async for delta in deltas:
                    if given := await self._take(delta, redraw):
                        yield SpeechTokenDelta(given)
                    if self._verdict is not None:
                        break
            first = first or self._verdict or self._watching().left_out
            if self._verdict is None:
                break
        outcome, last = self._end()
        if first is not None:
            on_note(GuardNote(first.trouble.value, outcome))
        yield last

    async def _take(self, delta: SpeechTokenDelta, redraw: int) -> tuple[int, ...]:
        """Look at what came, up to the first trouble; return what may be spoken now."""
        guard = self._watching()
        since = guard.given
        if guard.length is None:
            guard.grow(*self._text())
        self._fills += [len(guard.tokens) + place for place in delta.fills]
        for place, token_id in enumerate(delta.token_ids):
            if place % _TOKENS_A_TURN == 0 and len(delta.token_ids) > _TOKENS_A_TURN:
                await self._settings.line.turn()
            if self._judge(guard.push(token_id), redraw):
                break
            if len(guard.tokens) >= self._held_first:
                guard.given = max(guard.given, self._ask.free_of(len(guard.tokens), guard.length))
        if self._verdict is None and delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            self._judge(guard.end(delta.finish_reason), redraw)
        return tuple(guard.tokens[since : guard.given])

    def _watching(self) -> AnswerGuard:
        if self._guard is None:
            self._guard = AnswerGuard(*self._text(), self._settings, self._kept)
        return self._guard

    def _judge(self, verdict: TroubleFound | None, redraw: int) -> bool:
        """Tell whether the answer is over; the last one goes on behind a missed word, so as not to lose more."""
        if verdict is not None and verdict.trouble is Trouble.WORD and redraw == self._settings.redraws:
            self._misses_word, verdict = True, None
        self._verdict = verdict
        return verdict is not None

    def _end(self) -> tuple[GuardOutcome, SpeechTokenDelta]:
        """Return what became of the trouble, if there was one, and the last delta."""
        guard, verdict = self._watching(), self._verdict
        tokens, given = guard.tokens, guard.given
        if verdict is None:
            outcome = GuardOutcome.HEARD if self._misses_word else GuardOutcome.MENDED
            return outcome, SpeechTokenDelta(tuple(tokens[given:]), self._finish_reason)
        last = tuple(tokens[given : verdict.good_tokens])
        if verdict.good_tokens == len(tokens):  # it ended by itself, so that nothing is to be cut
            return GuardOutcome.HEARD, SpeechTokenDelta(last, STOP_FINISH)
        return GuardOutcome.CUT, SpeechTokenDelta(last, LENGTH_FINISH)

    def _first_held(self) -> int:
        """Return how many tokens of the stream's first chunk are held back, as they may show a trouble."""
        first = self._ask.free_tokens - self._ask.stream_tokens
        if first <= 0:
            return 0
        _, length = self._text()
        may_show = length is not None and (self._settings.aligner is not None or length.shortest < first)
        return first if may_show else 0

    def _text(self) -> tuple[str, SpeechLength | None]:
        """Return the text so far and, if that is all, how long its speech is."""
        coming, text = self._coming, self._ask.utterance.text
        if coming is not None:
            text += "".join(coming.pieces)
        is_whole = coming is None or coming.is_whole
        return text, self._ask.length_of(text, self._settings.silent_tokens) if is_whole else None
