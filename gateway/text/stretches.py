"""A text as it was written beside what is spoken of it: stretches, and the way back from speech to writing.

A reader of a text (`markdown`, `ssml`) yields stretches; `Markup` cuts the written text where the text without markup
is cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.text.alignment import Alignment, NormalizedText, SpokenStretch, joined, replaced, unchanged
from gateway.text.manner import Manner
from gateway.text.splitter import Segment


@dataclass(frozen=True)
class Stretch:
    """A piece of the text and what is spoken for it; either may be empty."""

    written: str
    spoken: str
    pause: float | None = None
    """Seconds of silence after the stretch, maybe none; the text is cut there. None: it is not."""
    manner: Manner | None = None
    """How the stretch is spoken; None: as the rest of the text."""


BareText = tuple[str, bool]
"""Text without markup, and whether a break follows it."""


class TextReader(Protocol):
    """Tells what of a written text is spoken; raises InvalidRequestError behind all that can be spoken nevertheless."""

    def reading(self, piece: str) -> Iterator[list[Stretch]]:
        """Take more text, of any length, and yield what is certain, in small steps."""
        ...

    def finishing(self) -> Iterator[list[Stretch]]:
        """Yield all that is left, as if the text ended here; more may be read afterwards."""
        ...


class Markup:
    """One text without its markup, and the way back from it to what was written."""

    def __init__(self, reader: TextReader) -> None:
        """Begin a text with what reads it."""
        self._reader = reader
        self._stretches: deque[Stretch] = deque()
        """Stretches that were read and belong to no segment yet."""
        self._start = 0

    def reading(self, piece: str) -> Iterator[BareText]:
        """Take more text and yield what is certain of it without markup, in small steps and in parts between breaks."""
        for stretches in self._reader.reading(piece):
            yield from self._noted(stretches)

    def finishing(self) -> Iterator[BareText]:
        """Yield all that is left, as if the text ended here; more may be read afterwards."""
        for stretches in self._reader.finishing():
            yield from self._noted(stretches)

    def as_written(self, cut: Segment) -> Segment:
        """Return a segment of the text as it was written, for the next one of the text without markup."""
        taken, missing = list[Stretch](), len(cut.text)
        while missing:
            stretch = self._stretches.popleft()
            if len(stretch.spoken) > missing:
                head, tail = _parted(stretch, missing)
                self._stretches.appendleft(tail)
                stretch = head
            taken.append(stretch)
            missing -= len(stretch.spoken)
        return self._segment(taken)

    def with_rest(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments with what is left, which has nothing to speak, at the end of the last one."""
        return self._with_silent(segments, len(self._stretches)) if self._stretches else segments

    def with_pause(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments before a break with the break at the end of the last one."""
        count, pause = next((at, each.pause) for at, each in enumerate(self._stretches, 1) if each.pause is not None)
        size = len(segments[-1].text) if segments else 0
        *before, last = self._with_silent(segments, count)
        return [*before, replace(last, pause=pause, pause_from=size)]

    def _with_silent(self, segments: list[Segment], count: int) -> list[Segment]:
        """Return the segments with so many stretches, of which nothing is spoken, at the end of the last one."""
        *before, last = segments or [Segment("", self._start)]
        written = "".join(self._stretches.popleft().written for _ in range(count))
        self._start += len(written)
        bare = joined((last.bare or unchanged(last.text), replaced(written, [(0, len(written), "")])))
        return [*before, replace(last, text=last.text + written, bare=bare)]

    def _segment(self, taken: list[Stretch]) -> Segment:
        written = "".join(stretch.written for stretch in taken)
        manner = next((stretch.manner for stretch in taken if stretch.spoken.strip()), None)
        start, self._start = self._start, self._start + len(written)
        if manner is None and all(stretch.written == stretch.spoken for stretch in taken):
            return Segment(written, start)
        spans = tuple(SpokenStretch(len(stretch.written), len(stretch.spoken)) for stretch in taken)
        bare = "".join(stretch.spoken for stretch in taken)
        return Segment(written, start, NormalizedText(bare, Alignment(spans)), manner=manner)

    def _noted(self, stretches: list[Stretch]) -> list[BareText]:
        self._stretches.extend(stretches)
        parts, spoken = list[BareText](), list[str]()
        for stretch in stretches:
            spoken.append(stretch.spoken)
            if stretch.pause is not None:
                parts.append(("".join(spoken), True))
                spoken = []
        return [*parts, ("".join(spoken), False)]


def _parted(stretch: Stretch, spoken: int) -> tuple[Stretch, Stretch]:
    """Cut a stretch behind so many characters spoken; of one that was replaced, the first part has all written."""
    written = spoken if stretch.written == stretch.spoken else len(stretch.written)
    head = replace(stretch, written=stretch.written[:written], spoken=stretch.spoken[:spoken], pause=None)
    return head, replace(stretch, written=stretch.written[written:], spoken=stretch.spoken[spoken:])
