"""Texts and their normalised forms: which part became which, to tell positions of the one in the other.

    source   It costs | $3.50                    | today.
    spoken   It costs | three point five dollars | today.

Positions lie between characters, 0 to the length. Both directions are monotone and map ends to ends. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import accumulate

# Words with the blank space behind them, and single characters where there are no words.
_TOKEN = re.compile(r"(?:[^\W\d_\u3040-\u30ff\u3400-\u9fff]+|\d+|\S)\s*|\s+")


@dataclass(frozen=True)
class SpokenStretch:
    """A stretch of the source and what is spoken for it; either may be empty."""

    source_length: int
    spoken_length: int


@dataclass(frozen=True)
class Alignment:
    """The spans of two texts, in order, together covering both."""

    spans: tuple[SpokenStretch, ...]

    def then(self, later: Alignment) -> Alignment:
        """Align this source with what became of its spoken text, of which `later` tells."""
        inner = sorted({*self._spoken_starts[1:-1], *later._source_starts[1:-1]})
        sources = [0, *map(self.source_at, inner), self.source_length]
        results = [0, *map(later.spoken_at, inner), later.spoken_length]
        steps = zip(sources, sources[1:], results, results[1:], strict=False)
        return Alignment(
            tuple(
                SpokenStretch(until - since, end - start)
                for since, until, start, end in steps
                if until > since or end > start
            )
        )

    @property
    def source_length(self) -> int:
        """Characters of the source."""
        return sum(span.source_length for span in self.spans)

    @property
    def spoken_length(self) -> int:
        """Characters of the spoken text."""
        return sum(span.spoken_length for span in self.spans)

    def source_at(self, spoken_position: int) -> int:
        """Return the source's position for one of the spoken text; inside a replaced part, in proportion.

        Raises:
            ValueError: the position is out of range.
        """
        return _mapped(spoken_position, self._spoken_starts, self._source_starts)

    def spoken_at(self, source_position: int) -> int:
        """Return the spoken text's position for one of the source; inside a replaced part, in proportion.

        Raises:
            ValueError: the position is out of range.
        """
        return _mapped(source_position, self._source_starts, self._spoken_starts)

    @cached_property
    def _source_starts(self) -> list[int]:
        return list(accumulate((span.source_length for span in self.spans), initial=0))

    @cached_property
    def _spoken_starts(self) -> list[int]:
        return list(accumulate((span.spoken_length for span in self.spans), initial=0))


def align(source: str, spoken: str) -> Alignment:
    """Align a text with its normalised form by the words that they have in common."""
    if source == spoken:
        return unchanged(source).alignment
    tokens, words = _TOKEN.findall(source), _TOKEN.findall(spoken)
    matcher = SequenceMatcher(None, tokens, words, autojunk=False)
    return Alignment(
        tuple(
            SpokenStretch(len("".join(tokens[from_token:to_token])), len("".join(words[from_word:to_word])))
            for _, from_token, to_token, from_word, to_word in matcher.get_opcodes()
        )
    )


def _mapped(position: int, starts: list[int], other_starts: list[int]) -> int:
    """Map a position from spans beginning at `starts` to those beginning at `other_starts`."""
    if not 0 <= position <= starts[-1]:
        raise ValueError(f"got position {position}, expected 0 to {starts[-1]}")
    if position == starts[-1]:
        return other_starts[-1]
    index = bisect_right(starts, position) - 1
    length, other_length = starts[index + 1] - starts[index], other_starts[index + 1] - other_starts[index]
    return other_starts[index] + (position - starts[index]) * other_length // length


@dataclass(frozen=True)
class NormalizedText:
    """A text as it is to be spoken."""

    text: str
    alignment: Alignment
    """How positions in the written text (source) and `text` (spoken) correspond."""


Normalizer = Callable[[str], NormalizedText]
"""Writes out numbers, dates, units and the like of one language; never fails, what it can't read stays as it is.

Takes at most a segment, without tags; blank space at its ends stays. Pure: the same text always gives the same words.
"""


def joined(parts: Iterable[NormalizedText]) -> NormalizedText:
    """Put texts one behind the other."""
    parts = tuple(parts)
    spans = tuple(span for part in parts for span in part.alignment.spans)
    return NormalizedText("".join(part.text for part in parts), Alignment(spans))


def replaced(text: str, changes: Iterable[tuple[int, int, str]]) -> NormalizedText:
    """Return a text with other words in some places.

    Args:
        text: any.
        changes: where a place begins and ends and what is spoken there, in order.
    """
    parts, spans, at = list[str](), list[SpokenStretch](), 0
    for start, end, spoken in (*changes, (len(text), len(text), "")):
        parts += [text[at:start], spoken]
        spans += [SpokenStretch(start - at, start - at), SpokenStretch(end - start, len(spoken))]
        at = end
    return NormalizedText("".join(parts), Alignment(tuple(span for span in spans if span != SpokenStretch(0, 0))))


def unchanged(text: str) -> NormalizedText:
    """Return a text as it is."""
    return replaced(text, ())
