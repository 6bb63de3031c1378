"""Asks the LLM for one segment and has it asked again where the guard sees that the speech leaves the text.

    answer 1   kept kept kept | trouble          not spoken yet: thrown away
    answer 2                  | again again again end

A new answer goes on behind what was given out, as one does that another replica takes over, and draws with a seed that
follows from the segment's. Where no answer is good, the speech ends at the last good place.

A text may still be written meanwhile. Then each answer gets what was taken of it and goes on with the rest; nothing is
held back, and how long the speech may be is judged, once the text is whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from gateway.core import Sampling, SpeechLM, SpeechTokenDelta, Utterance
from gateway.llm.length import SpeechLength, usual_speech
from gateway.speech.guard import LONG_FINISH, AnswerGuard, GuardMode, GuardSettings, Trouble, TroubleFound, free_tokens
from gateway.speech.interleaved import TakenText
from gateway.speech.request import MAX_SEED, STOP_FINISH, GuardNote, GuardOutcome

_SEED_STEP = 0x9E3779B97F4A7C15
"""Far from the seeds of the segments behind, which follow each other."""
OnNote = Callable[[GuardNote], None]


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


def redraw_seed(seed: int, redraw: int) -> int:
    """Return the seed of a segment's answer; redraw 0 is the first answer."""
    return (seed + redraw * _SEED_STEP) % (MAX_SEED + 1)


def guarded(
    llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings, on_note: OnNote
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

    async def answers(self, on_note: OnNote) -> AsyncGenerator[SpeechTokenDelta]:
        """Yield what may be spoken of one answer after the other, until one is good."""
        first: TroubleFound | None = None
        for redraw in range(self._settings.redraws + 1):
            async with aclosing(self._answer(redraw)) as deltas:
                async for delta in deltas:
                    yield delta
            first = first or self._verdict
            if self._verdict is None:
                break
        outcome, last = self._end()
        if first is not None:
            on_note(GuardNote(first.trouble.value, outcome))
        yield last

    async def _answer(self, redraw: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Ask once for what was not given out yet; yield what may be given out, up to the first trouble."""
        if self._guard is not None:
            self._kept = self._guard.tokens[: self._guard.given]
        self._guard, self._verdict = None, None
        self._fills = [place for place in self._fills if place < len(self._kept)]
        seed = redraw_seed(self._ask.seed, redraw)
        async with aclosing(self._llm.generate(self._asked(), self._ask.sampling, seed)) as deltas:
            async for delta in deltas:
                if given := self._take(delta, redraw):
                    yield SpeechTokenDelta(given)
                if self._verdict is not None:
                    return

    def _take(self, delta: SpeechTokenDelta, redraw: int) -> tuple[int, ...]:
        """Look at what came, up to the first trouble; return what may be spoken now."""
        guard = self._watching()
        since = guard.given
        if guard.length is None:
            guard.grow(*self._text())
        self._fills += [len(guard.tokens) + place for place in delta.fills]
        for token_id in delta.token_ids:
            if self._judge(guard.push(token_id), redraw):
                break
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
        return GuardOutcome.CUT, SpeechTokenDelta(last, LONG_FINISH)

    def _text(self) -> tuple[str, SpeechLength | None]:
        """Return the text so far and, if that is all, how long its speech is."""
        coming, text = self._coming, self._ask.utterance.text
        if coming is not None:
            text += "".join(coming.pieces)
        is_whole = coming is None or coming.is_whole
        return text, self._ask.length_of(text, self._settings.silent_tokens) if is_whole else None

    def _asked(self) -> Utterance:
        """Return what the LLM is to speak, behind the tokens that were given out."""
        asked = self._ask.utterance
        spoken, fills = (*asked.spoken_tokens, *self._kept), (*asked.fills, *self._fills)
        asked = replace(asked, spoken_tokens=spoken, fills=fills)
        if self._coming is None:
            return asked
        return replace(asked, coming_text=self._coming, taken_text=(*asked.taken_text, *self._coming.pieces))
