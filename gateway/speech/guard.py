"""Asks the LLM for one segment, and asks again where it ended too early or went on when its text must have been said.

    answer 1   [ given out to token2wav | held back        too long: thrown away
    answer 2                            | again end

What is held back follows from the tokens alone, never from time, so that equal seeds give equal speech; the first chunk
is never held back. A new answer goes on behind what was given out, as one does that another replica takes over, and
draws with a seed that follows from the segment's. Where no answer is good, the speech ends at the last good place.

A text may still be written meanwhile. Then each answer gets what was taken of it and goes on with the rest; nothing is
held back, and how long the speech may be is judged, once the text is whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from gateway.core import Sampling, SpeechLM, SpeechTokenDelta, Utterance
from gateway.llm.length import SpeechLength, usual_speech
from gateway.speech.interleaved import TakenText
from gateway.speech.request import LENGTH_FINISH, MAX_SEED, STOP_FINISH, GuardNote, GuardOutcome
from llm_service.speech_bounds import SpeechBounds

LONGEST_PAUSE_TOKENS = 40
"""1.6 s: longer than a pause between sentences."""
MOST_HELD_TOKENS = 75
"""3 s: below the 5 s that our own LLM engine runs ahead of a listener."""
_HELD_DIVISOR = 3
"""An LLM a third faster than speech is far enough ahead after n tokens to have n / 3 of them held back."""
_SEED_STEP = 0x9E3779B97F4A7C15
"""Far from the seeds of the segments behind, which follow each other."""


class GuardMode(str, Enum):
    """What the guard does."""

    OFF = "off"
    MEND = "mend"
    """It has what was not spoken yet spoken again."""


class Trouble(str, Enum):
    """How speech leaves its text."""

    SHORT = "short"
    """It ends before the text can have been said."""
    LONG = "long"
    """It goes on when the text must have been said."""


class TroubleFound(NamedTuple):
    """A trouble, and up to where the answer is good."""

    trouble: Trouble
    good_tokens: int


@dataclass(frozen=True)
class GuardSettings:
    """How answers are guarded."""

    mode: GuardMode = GuardMode.OFF
    silent_tokens: frozenset[int] = frozenset()
    """The checkpoint's tokens (of 6561) that sound as silence; empty: not known, so all are taken to sound."""
    redraws: int = 3
    """How often one segment is spoken again at most."""

    @classmethod
    def of_checkpoint(cls, mode: GuardMode, bounds: SpeechBounds) -> GuardSettings:
        """Return what suits a checkpoint: speech that follows no text is not held to one."""
        suits = GuardMode.OFF if bounds.follows_text is False else mode
        return cls(suits, frozenset(bounds.silent_tokens or ()))


@dataclass(frozen=True)
class SegmentAsk:
    """The request to the LLM for one segment."""

    utterance: Utterance
    sampling: Sampling
    seed: int
    stream_tokens: int
    """Given out before it in the stream."""
    free_tokens: int
    """In the stream's first chunk, look-ahead included; they are never held back."""

    def length_of(self, text: str, silent_tokens: frozenset[int] = frozenset()) -> SpeechLength:
        """Return how long a text takes in this voice; for `silent_tokens` see `GuardSettings`."""
        return usual_speech(text, self.utterance.reference_text, self.utterance.reference_tokens, silent_tokens)

    def free_of(self, count: int, length: SpeechLength | None) -> int:
        """Return how many of the segment's tokens, `count` so far, may be spoken; more than usual wait for the end."""
        if length is None:
            return count if self.stream_tokens + count >= self.free_tokens else 0
        free = free_tokens(self.stream_tokens + count, self.free_tokens) - self.stream_tokens
        return min(free, max(length.usual, self.free_tokens - self.stream_tokens))


def free_tokens(position: int, first_chunk: int) -> int:
    """Return how many of the tokens of a stream, `position` so far, may be spoken; a first chunk, once it is whole."""
    if position < first_chunk:
        return 0
    return position - min(MOST_HELD_TOKENS, (position - first_chunk) // _HELD_DIVISOR)


def redraw_seed(seed: int, redraw: int) -> int:
    """Return the seed of a segment's answer; redraw 0 is the first answer."""
    return (seed + redraw * _SEED_STEP) % (MAX_SEED + 1)


def guarded(
    llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings, on_note: Callable[[GuardNote], None]
) -> AsyncGenerator[SpeechTokenDelta]:
    """Yield the speech tokens of one segment; the last delta, and only it, has a finish_reason.

    Args:
        llm: speaks.
        ask: what.
        settings: how it is guarded.
        on_note: is told of a trouble, once it is known what became of it.

    Raises:
        LLMError: see `SpeechLM.generate`.
    """
    if settings.mode is GuardMode.OFF:
        return llm.generate(ask.utterance, ask.sampling, ask.seed)
    return _Mending(llm, ask, settings).answers(on_note)


class _Mending:
    """One segment, by as many answers as it takes."""

    def __init__(self, llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings) -> None:
        self._llm, self._ask, self._settings = llm, ask, settings
        coming = ask.utterance.coming_text
        self._coming = None if coming is None else TakenText(coming)
        self._length: SpeechLength | None = None
        """Bounds of the speech; worked out when the first tokens are here and the text is whole."""
        self._tokens: list[int] = []
        """All of the latest answer, those that it goes on behind among them."""
        self._given = 0
        """Tokens given out."""
        self._fills: list[int] = []
        self._verdict: TroubleFound | None = None
        """Of the latest answer; None: it is good."""
        self._finish_reason = STOP_FINISH

    async def answers(self, on_note: Callable[[GuardNote], None]) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield what may be spoken of one answer after the other, until one is good."""
        first: TroubleFound | None = None
        for redraw in range(self._settings.redraws + 1):
            self._tokens = self._tokens[: self._given]
            self._fills = [place for place in self._fills if place < self._given]
            self._verdict = None
            seed = redraw_seed(self._ask.seed, redraw)
            async with aclosing(self._llm.generate(self._asked(), self._ask.sampling, seed)) as deltas:
                async for delta in deltas:
                    if given := self._take(delta):
                        yield SpeechTokenDelta(given)
                    if self._verdict is not None:
                        break
            first = first or self._verdict
            if self._verdict is None:
                break
        outcome, last = self._end()
        if first is not None:
            on_note(GuardNote(first.trouble.value, outcome))
        yield last

    def _take(self, delta: SpeechTokenDelta) -> tuple[int, ...]:
        """Look at what came; return what may be spoken now."""
        self._measure()
        since = self._given
        self._fills += [len(self._tokens) + place for place in delta.fills]
        self._tokens += delta.token_ids
        if self._length is not None and len(self._tokens) > self._length.longest:
            del self._tokens[self._length.longest + 1 :]
            self._verdict = self._too_long(self._length)
        elif delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            self._verdict = self._judge_end()
        self._given = max(since, self._ask.free_of(len(self._tokens), self._length))
        return tuple(self._tokens[since : self._given])

    def _measure(self) -> None:
        """Work out the bounds, if the text is whole."""
        coming, text = self._coming, self._ask.utterance.text
        if self._length is None and (coming is None or coming.is_whole):
            text += "".join(() if coming is None else coming.pieces)
            self._length = self._ask.length_of(text, self._settings.silent_tokens)

    def _judge_end(self) -> TroubleFound | None:
        """Return the trouble with an answer that has ended, if any."""
        length = self._length
        if length is None:
            return None  # no room for the rest of the text, which is no fault of the speech
        if self._finish_reason == LENGTH_FINISH:
            return self._too_long(length)
        count = len(self._tokens)
        sounding = sum(token_id not in self._settings.silent_tokens for token_id in self._tokens)
        if count < length.shortest or sounding < length.least_sounding:
            return TroubleFound(Trouble.SHORT, count)
        return TroubleFound(Trouble.LONG, count) if length.slowest is not None and count > length.slowest else None

    def _too_long(self, length: SpeechLength) -> TroubleFound:
        """Judge an answer that did not end: most likely its text ends in the pause next to the usual length."""
        tokens, usual = self._tokens, min(length.usual, len(self._tokens))
        pauses = (at for at in range(usual, len(tokens)) if tokens[at] in self._settings.silent_tokens)
        end = next(pauses, usual)
        return TroubleFound(Trouble.LONG, end if end <= usual + LONGEST_PAUSE_TOKENS else usual)

    def _end(self) -> tuple[GuardOutcome, SpeechTokenDelta]:
        """Return what became of the trouble, if there was one, and the last delta."""
        tokens, given, verdict = self._tokens, self._given, self._verdict
        if verdict is None:
            return GuardOutcome.MENDED, SpeechTokenDelta(tuple(tokens[given:]), self._finish_reason)
        last = tuple(tokens[given : verdict.good_tokens])
        if verdict.good_tokens == len(tokens):  # it ended by itself, so that nothing is to be cut
            return GuardOutcome.HEARD, SpeechTokenDelta(last, STOP_FINISH)
        return GuardOutcome.CUT, SpeechTokenDelta(last, LENGTH_FINISH)

    def _asked(self) -> Utterance:
        """Return what the LLM is to speak, behind the tokens that were given out."""
        asked = self._ask.utterance
        if self._given:
            spoken, fills = (*asked.spoken_tokens, *self._tokens), (*asked.fills, *self._fills)
            asked = replace(asked, spoken_tokens=spoken, fills=fills)
        if self._coming is None:
            return asked
        return replace(asked, coming_text=self._coming, taken_text=(*asked.taken_text, *self._coming.pieces))
