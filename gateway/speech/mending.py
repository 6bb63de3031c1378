"""Asks the LLM for one segment and has it asked again where the guard sees that the speech leaves the text.

    answer 1   kept kept kept | trouble          not spoken yet: thrown away
    answer 2                  | again again again end

A new answer goes on behind what was given out, as one does that another replica takes over, and draws with a seed that
follows from the segment's. Where no answer is good, the speech ends at the last good place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from gateway.core import Sampling, SpeechLM, SpeechTokenDelta, Utterance
from gateway.llm.length import SpeechLength, usual_speech
from gateway.speech.guard import LONG_FINISH, AnswerGuard, GuardMode, GuardSettings, HeldAnswer, Trouble, Verdict
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
    """See `gateway.speech.guard.held_tokens`."""


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
    watch = _warned if settings.mode is GuardMode.WARN else _mended
    return watch(llm, ask, settings, on_note)


async def _warned(
    llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings, on_note: OnNote
) -> AsyncGenerator[SpeechTokenDelta]:
    guard = _guard(ask, settings)
    verdict: Verdict | None = None
    async with aclosing(llm.generate(ask.utterance, ask.sampling, ask.seed)) as deltas:
        async for delta in deltas:
            if verdict is None and (verdict := _look(guard, delta)) is not None:
                on_note(GuardNote(verdict.trouble.value, GuardOutcome.HEARD))
            yield delta


async def _mended(
    llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings, on_note: OnNote
) -> AsyncGenerator[SpeechTokenDelta]:
    mending, first = _Mending(llm, ask, settings), None
    for redraw in range(settings.redraws + 1):
        async with aclosing(mending.answer(redraw)) as deltas:
            async for delta in deltas:
                yield delta
        first = first or mending.verdict
        if mending.verdict is None:
            break
    note, last = mending.end(first)
    if note is not None:
        on_note(note)
    yield last


class _Mending:
    """One segment, by as many answers as it takes."""

    def __init__(self, llm: SpeechLM, ask: SegmentAsk, settings: GuardSettings) -> None:
        self._llm = llm
        self._ask = ask
        self._settings = settings
        self._held = HeldAnswer(ask.stream_tokens, ask.free_tokens, _length(ask).usual)
        self._guard = _guard(ask, settings)
        self.verdict: Verdict | None = None
        """Of the latest answer; None: it is good."""

    async def answer(self, redraw: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Ask once for what was not given out yet; yield what may be given out, up to the first trouble."""
        kept = tuple(self._guard.tokens[: self._held.given])
        self._guard, self.verdict = _guard(self._ask, self._settings), None
        self._guard.push(kept)
        utterance = replace(self._ask.utterance, spoken_tokens=(*self._ask.utterance.spoken_tokens, *kept))
        deltas = self._llm.generate(utterance, self._ask.sampling, redraw_seed(self._ask.seed, redraw))
        async with aclosing(deltas):
            async for delta in deltas:
                self.verdict = _look(self._guard, delta)
                if self.verdict is not None:
                    return
                if given := self._held.next_given(self._guard.tokens):
                    yield SpeechTokenDelta(given)

    def end(self, first: Verdict | None) -> tuple[GuardNote | None, SpeechTokenDelta]:
        """Return what to tell and the last delta.

        Args:
            first: the verdict on the first answer.
        """
        tokens = self._guard.tokens
        if self.verdict is None:
            note = None if first is None else GuardNote(first.trouble.value, GuardOutcome.MENDED)
            return note, SpeechTokenDelta(self._held.rest(tokens), STOP_FINISH)
        last = self._held.rest(tokens, self.verdict.good_tokens)
        if self.verdict.trouble is Trouble.SHORT:
            return GuardNote(Trouble.SHORT.value, GuardOutcome.HEARD), SpeechTokenDelta(last, STOP_FINISH)
        return GuardNote(self.verdict.trouble.value, GuardOutcome.CUT), SpeechTokenDelta(last, LONG_FINISH)


def _length(ask: SegmentAsk) -> SpeechLength:
    return usual_speech(ask.utterance.text, ask.utterance.reference_text, ask.utterance.reference_tokens)


def _guard(ask: SegmentAsk, settings: GuardSettings) -> AnswerGuard:
    return AnswerGuard(ask.utterance.text, _length(ask), settings.silent_tokens)


def _look(guard: AnswerGuard, delta: SpeechTokenDelta) -> Verdict | None:
    verdict = guard.push(delta.token_ids)
    if verdict is None and delta.finish_reason is not None:
        return guard.end(delta.finish_reason)
    return verdict
