"""What every normaliser of text offers: written forms in, words in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.text.alignment import Alignment


@dataclass(frozen=True)
class NormalizedText:
    """A text as it is to be spoken."""

    text: str
    alignment: Alignment
    """How positions in the written text (source) and `text` (spoken) correspond."""


class Normalizer(Protocol):
    """Normalises one language. Pure: the same text always gives the same words."""

    def normalize(self, text: str) -> NormalizedText:
        """Write out numbers, dates, units and the like; never fails, what it can't read stays as it is.

        Args:
            text: at most a segment, without tags. Blank space at its ends stays.
        """
        ...


def unchanged(text: str) -> NormalizedText:
    """Return a text as it is."""
    return NormalizedText(text, Alignment.identity(len(text)))


# A grammar takes half a millisecond for a digit or mark, a tenth for a letter, and nothing else runs meanwhile.
_LETTER_COST, _MARK_COST = 1, 5
_PIECE_COST = 300
"""Largest cost of a piece normalised at once; only text full of digits and marks costs more."""
_CLAUSE_END = re.compile(r"(?<!\d)[，。！？；、]|(?<=[^\W\d_]{4}[,;:!?])\s(?=[^\W\d_]{2})")
"""Ends of clauses, where no number or name continues."""
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]{3})\s(?=[^\W\d_]{3})")
_BLANK = re.compile(r"\s")
_PLACES = (_CLAUSE_END, _BETWEEN_WORDS, _BLANK)


def clauses(text: str) -> Iterator[str]:
    """Cut a text that is costly to normalise into pieces that are normalised one by one; joined they are the text.

    A piece ends where a clause does, or else between two words, or at a blank, or anywhere in what has none of these.
    """
    at = 0
    while (limit := _affordable_end(text, at)) < len(text):
        places = ([found.end() for found in place.finditer(text, at, limit)] for place in _PLACES)
        end = next((ends[-1] for ends in places if ends), limit)
        yield text[at:end]
        at = end
    yield text[at:]


def _affordable_end(text: str, at: int) -> int:
    cost = 0
    for end in range(at, len(text)):
        cost += _LETTER_COST if text[end].isalpha() or text[end].isspace() else _MARK_COST
        if cost > _PIECE_COST:
            return end
    return len(text)
