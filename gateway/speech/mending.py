"""Asks the LLM for one segment and has it asked again where the guard sees that the speech leaves the text.

    answer 1   kept kept kept | trouble          not spoken yet: thrown away
    answer 2                  | again again again end

A new answer goes on behind what was given out, as one does that another replica takes over, and draws with a seed that
follows from the segment's. Where no answer is good, the speech ends at the last good place.

A text may still be written meanwhile. Then each answer gets what was taken of it and goes on with the rest; nothing is
held back while the LLM waits for the writer; and how long the speech may be is judged once the text is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from gateway.core import Sampling, SpeechLM, SpeechTokenDelta, Utterance
from gateway.llm.length import SpeechLength, usual_speech
from gateway.speech.guard import LONG_FINISH, AnswerGuard, GuardMode, GuardSettings, HeldAnswer, Verdict
from gateway.speech.interleaved import TakenText
from gateway.speech.request import MAX_SEED, STOP_FINISH, GuardNote, GuardOutcome
from servicekit.tasks import stop

LULL_S = 0.2
"""A writer who is waited for and an LLM that says nothing for so long: it waits too. An LLM draws 8 tokens in it even
where it is no faster than speech."""
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

    def length_of(self, text: str, silent_tokens: frozenset[int] = frozenset()) -> SpeechLength:
        """Return how long a text takes in this voice; for `silent_tokens` see `GuardSettings`."""
        return usual_speech(text, self.utterance.reference_text, self.utterance.reference_tokens, silent_tokens)


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
    text = _SegmentText(ask, settings.silent_tokens)
    guard = text.guard()
    verdict: Verdict | None = None
    async with aclosing(llm.generate(text.asked(), ask.sampling, ask.seed)) as deltas:
        async for delta in deltas:
            if text.has_grown():
                guard.grow(text.so_far, text.length)
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
        self._text = _SegmentText(ask, settings.silent_tokens)
        self._held = HeldAnswer(ask.stream_tokens, ask.free_tokens, self._text.usual_tokens)
        self._guard = self._text.guard()
        self._fills: list[int] = []
        self._finish_reason = STOP_FINISH
        self.verdict: Verdict | None = None
        """Of the latest answer; None: it is good."""

    async def answer(self, redraw: int) -> AsyncGenerator[SpeechTokenDelta]:
        """Ask once for what was not given out yet; yield what may be given out, up to the first trouble."""
        kept = tuple(self._guard.tokens[: self._held.given])
        self._guard, self.verdict = self._text.guard(), None
        self._guard.push(kept)
        self._fills = [place for place in self._fills if place < len(kept)]
        utterance = self._text.asked(kept, tuple(self._fills))
        deltas = self._llm.generate(utterance, self._ask.sampling, redraw_seed(self._ask.seed, redraw))
        async with aclosing(deltas), aclosing(self._text.with_lulls(deltas)) as news:
            async for delta in news:
                given = self._held.waiting(self._guard.tokens) if delta is None else self._take(delta)
                if self.verdict is not None:
                    return
                if given:
                    yield SpeechTokenDelta(given)

    def _take(self, delta: SpeechTokenDelta) -> tuple[int, ...]:
        """Look at what came; return what may be given out."""
        if self._text.has_grown():
            self._guard.grow(self._text.so_far, self._text.length)
            self._held.usual_tokens = self._text.usual_tokens
        self._fills += [len(self._guard.tokens) + place for place in delta.fills]
        self._finish_reason = delta.finish_reason or STOP_FINISH
        self.verdict = _look(self._guard, delta)
        return self._held.next_given(self._guard.tokens) if self.verdict is None else ()

    def end(self, first: Verdict | None) -> tuple[GuardNote | None, SpeechTokenDelta]:
        """Return what to tell and the last delta.

        Args:
            first: the verdict on the first answer.
        """
        tokens = self._guard.tokens
        if self.verdict is None:
            note = None if first is None else GuardNote(first.trouble.value, GuardOutcome.MENDED)
            return note, SpeechTokenDelta(self._held.rest(tokens), self._finish_reason)
        last = self._held.rest(tokens, self.verdict.good_tokens)
        ended = self.verdict.good_tokens == len(tokens)  # by itself, so that nothing is to be cut
        outcome, reason = (GuardOutcome.HEARD, STOP_FINISH) if ended else (GuardOutcome.CUT, LONG_FINISH)
        return GuardNote(self.verdict.trouble.value, outcome), SpeechTokenDelta(last, reason)


class _SegmentText:
    """The text of one segment, which may still be written; what was taken of it goes to every answer again."""

    def __init__(self, ask: SegmentAsk, silent_tokens: frozenset[int]) -> None:
        self._ask, coming = ask, ask.utterance.coming_text
        self._silent = silent_tokens
        self._coming = None if coming is None else TakenText(coming)
        self._seen = (0, False)

    @property
    def so_far(self) -> str:
        pieces = self._coming.pieces if self._coming is not None else ()
        return self._ask.utterance.text + "".join(pieces)

    @property
    def length(self) -> SpeechLength | None:
        """Of its speech; None while it is being written."""
        is_whole = self._coming is None or self._coming.is_whole
        return self._ask.length_of(self.so_far, self._silent) if is_whole else None

    @property
    def usual_tokens(self) -> int | None:
        return None if (length := self.length) is None else length.usual

    def guard(self) -> AnswerGuard:
        return AnswerGuard(self.so_far, self.length, self._silent)

    def has_grown(self) -> bool:
        """Tell whether there is more of it than the last time."""
        seen = self._seen
        if self._coming is not None:
            self._seen = (len(self._coming.pieces), self._coming.is_whole)
        return seen != self._seen

    def asked(self, kept: tuple[int, ...] = (), fills: tuple[int, ...] = ()) -> Utterance:
        """Return what the LLM is to speak, behind tokens of it that were given out."""
        asked = self._ask.utterance
        asked = replace(asked, spoken_tokens=(*asked.spoken_tokens, *kept), fills=(*asked.fills, *fills))
        if self._coming is None:
            return asked
        return replace(asked, coming_text=self._coming, taken_text=(*asked.taken_text, *self._coming.pieces))

    def with_lulls(self, deltas: AsyncGenerator[SpeechTokenDelta]) -> AsyncGenerator[SpeechTokenDelta | None]:
        """Return what comes, with a None each time that the LLM most likely waits for the writer."""
        return deltas if self._coming is None else _with_lulls(deltas, self._coming)


async def _with_lulls(
    deltas: AsyncGenerator[SpeechTokenDelta], text: TakenText
) -> AsyncGenerator[SpeechTokenDelta | None]:
    while not text.is_whole:
        coming = asyncio.ensure_future(_next(deltas))
        try:
            while not (await asyncio.wait([coming], timeout=LULL_S))[0]:
                if text.is_awaited:
                    yield None
        finally:
            if not coming.done():
                await stop(coming)
        if (delta := coming.result()) is None:
            return
        yield delta
    async for delta in deltas:
        yield delta


async def _next(deltas: AsyncGenerator[SpeechTokenDelta]) -> SpeechTokenDelta | None:
    return await anext(deltas, None)


def _look(guard: AnswerGuard, delta: SpeechTokenDelta) -> Verdict | None:
    verdict = guard.push(delta.token_ids)
    if verdict is None and delta.finish_reason is not None:
        return guard.end(delta.finish_reason)
    return verdict
