"""Segments of a text that is still being written, as one answer of the LLM: it takes them while it speaks.

    segments   Once upon a time | there was a | king. | <break> ...
    answer 1   text, speech, text, speech, ... end      ► one span, which grows
    answer 2                                  ...

An answer ends with the text, before a pause or another way of speaking, and where its text gets long. One that is cut
short leaves the sentences behind the one that it was cut in to the next answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import reduce

from gateway.core import ComingText
from gateway.text import SpokenSegment
from gateway.text.alignment import Alignment
from gateway.text.breaks import full_stop
from servicekit.tasks import cancel

LONG_LETTERS = 400
"""The end of a sentence ends an answer from here on: its text and speech must fit the LLM's context."""
LONGEST_LETTERS = 800
_SENTENCE_ENDS = tuple(".!?\u2026\u3002\uff01\uff1f")


class SegmentQueue:
    """The segments of a text in their order; those that were taken too early can be put back."""

    def __init__(self, following: Callable[[], Awaitable[SpokenSegment | None]]) -> None:
        """Begin; `following` waits for the next segment, None: there is none."""
        self._following = following
        self._back = deque[SpokenSegment]()
        self._coming: asyncio.Future[SpokenSegment | None] | None = None

    async def take(self) -> SpokenSegment | None:
        """Wait for the next one; None at the end. May be cancelled and called again.

        Raises:
            GatewayError: the text can't go on.
        """
        if self._back:
            return self._back.popleft()
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._following())
        coming = self._coming
        segment = await asyncio.shield(coming)
        self._coming = None
        return segment

    def put_back(self, segments: Sequence[SpokenSegment]) -> None:
        """Have these come next."""
        self._back.extendleft(reversed(segments))

    def close(self) -> None:
        """Wait for no further segment."""
        if self._coming is not None:
            cancel(self._coming)


class ComingSegments(ComingText):
    """The segments behind an answer's first one, as long as they belong to it."""

    def __init__(self, first: SpokenSegment, queue: SegmentQueue, on_grown: Callable[[SpokenSegment], None]) -> None:
        """Begin an answer.

        Args:
            on_grown: is told of all that the answer speaks by now, as one segment.
        """
        super().__init__()
        self._segments, self._queue, self._on_grown = [first], queue, on_grown
        self._all = first
        self._is_over = False

    async def _coming(self) -> str | None:
        if self._is_over or self._is_full():
            return None
        segment = await self._queue.take()
        if segment is not None and (self._is_over or not _goes_on(self._all, segment)):
            self._queue.put_back([segment])
            segment = None
        if segment is None:
            missing = None if self._is_over else self._missing_end()
            self._is_over = True
            return missing
        self._segments.append(segment)
        self._grow(joined(self._all, segment))
        return segment.text

    def end(self) -> float:
        """Take no more: the answer has ended. Return the seconds of the pause behind it that `first` does not have."""
        self._is_over = True
        return self._all.source.pause_s if len(self._segments) > 1 else 0.0

    def cut(self, tokens: int, usual_tokens: Callable[[str], int]) -> None:
        """End an answer that was cut short: the sentences behind the one that it was cut in are another answer's.

        Args:
            tokens: how many were spoken.
            usual_tokens: tells how many a text usually takes.
        """
        said, text = list[SpokenSegment](), ""
        while len(said) < len(self._segments):
            said.append(self._segments[len(said)])
            text += said[-1].text
            if usual_tokens(text) >= tokens and text.rstrip().endswith(_SENTENCE_ENDS):
                break
        self._is_over, unsaid = True, self._segments[len(said) :]
        self._queue.put_back(unsaid)
        if unsaid:
            self._segments = said
            self._grow(reduce(joined, said))

    def _grow(self, whole: SpokenSegment) -> None:
        self._all = whole
        self._on_grown(whole)

    def _missing_end(self) -> str | None:
        """Return the mark that the LLM needs behind a text that ends with a word."""
        text = self._all.text.rstrip()
        return full_stop(text, self._all.language) if text[-1:].isalnum() else None

    def _is_full(self) -> bool:
        letters = len(self._all.text)
        ends_sentence = self._all.text.rstrip().endswith(_SENTENCE_ENDS)
        return self._all.source.pause is not None or letters >= (LONG_LETTERS if ends_sentence else LONGEST_LETTERS)


def joined(one: SpokenSegment, other: SpokenSegment) -> SpokenSegment:
    """Return two segments as one."""
    source = replace(
        one.source,
        text=one.source.text + other.source.text,
        bare=None,
        is_last=other.source.is_last,
        pause=other.source.pause,
        pause_from=len(one.source.text) + other.source.pause_from,
    )
    return replace(
        one,
        source=source,
        text=one.text + other.text,
        alignment=Alignment((*one.alignment.spans, *other.alignment.spans)),
    )


def _goes_on(one: SpokenSegment, other: SpokenSegment) -> bool:
    """Tell whether the LLM and what follows it treat both alike."""
    return (one.instruction, one.source.manner) == (other.instruction, other.source.manner)
