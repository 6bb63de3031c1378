"""Segments of a text that is still being written, as one answer of the LLM: it takes them while it speaks.

    segments   Once upon a time | there was a | king. | <break> ...
    answer 1   text, speech, text, speech, ... end      ► one span, which grows
    answer 2                                  ...

An answer ends with the text, before a pause or another way of speaking, and where its text gets long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gateway.core import ComingText
from gateway.text import SpokenSegment
from gateway.text.alignment import Alignment
from gateway.text.segments.endings import full_stop

LONG_LETTERS = 400
"""The end of a sentence ends an answer from here on: its text and speech must fit the LLM's context."""
LONGEST_LETTERS = 800
_SENTENCE_ENDS = tuple(".!?\u2026\u3002\uff01\uff1f")


class TakenText:
    """Implements `core.ComingText`: another one; remembers what was taken, for an answer that begins again."""

    def __init__(self, text: ComingText) -> None:
        """Begin where `text` is."""
        self._text = text
        self.pieces: list[str] = []
        self.is_whole = False
        """Whether there is no more."""

    async def next_piece(self) -> str | None:
        """See `core.ComingText.next_piece`."""
        piece = None if self.is_whole else await self._text.next_piece()
        if piece is None:
            self.is_whole = True
        else:
            self.pieces.append(piece)
        return piece


class ComingSegments:
    """Implements `core.ComingText`: the segments behind an answer's first one, as long as they belong to it."""

    def __init__(
        self,
        first: SpokenSegment,
        following: Callable[[], Awaitable[SpokenSegment | None]],
        on_joined: Callable[[SpokenSegment], None],
    ) -> None:
        """Begin an answer.

        Args:
            first: what the answer begins with.
            following: waits for the next segment; None: there is none.
            on_joined: is told of all that the answer speaks by now, as one segment.
        """
        self._all, self._following, self._on_joined = first, following, on_joined
        self._coming: asyncio.Future[SpokenSegment | None] | None = None
        self._rest: SpokenSegment | None = None
        self._is_over = False

    async def next_piece(self) -> str | None:
        """See `core.ComingText.next_piece`."""
        if self._is_over or self._is_full():
            return None
        segment = await self._next()
        self._coming = None
        if segment is None or not _goes_on(self._all, segment):
            self._rest, self._is_over = segment, True
            return self._missing_end()
        self._all = joined(self._all, segment)
        self._on_joined(self._all)
        return segment.text

    async def behind(self) -> SpokenSegment | None:
        """Return what follows the answer, when it has ended; waits for it. None: nothing.

        Raises:
            GatewayError: the text can't go on.
        """
        return self._rest if self._is_over else await self._next()

    def close(self) -> None:
        """Wait for no further segment."""
        if self._coming is not None:
            self._coming.cancel()

    def _missing_end(self) -> str | None:
        """Return the mark that the LLM needs behind a text that ends with a word."""
        text = self._all.text.rstrip()
        return full_stop(text, self._all.language) if text[-1:].isalnum() else None

    def _next(self) -> Awaitable[SpokenSegment | None]:
        """Wait for the next segment; cancelling the wait does not harm the segment."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._following())
        return asyncio.shield(self._coming)

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
        alignment=Alignment.joined([one.alignment, other.alignment]),
        foreign=one.foreign or other.foreign,
    )


def _goes_on(one: SpokenSegment, other: SpokenSegment) -> bool:
    """Tell whether the LLM and what follows it treat both alike."""
    return (one.instruction, one.source.manner) == (other.instruction, other.source.manner)
