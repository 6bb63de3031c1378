"""What every normaliser of text offers: written forms in, words in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.text.alignment import Alignment


@dataclass(frozen=True)
class NormalizedText:
    """A text as it is to be spoken."""

    text: str
    alignment: Alignment
    """Of what was written (source) with `text` (spoken)."""


class Normalizer(Protocol):
    """Normalises one language. Pure: the same text gives the same words, whoever asks."""

    def normalize(self, text: str) -> NormalizedText:
        """Write out numbers, dates, units and the like; never fails, what it can't read stays as it is.

        Args:
            text: at most a segment, without tags. Blank space at its ends stays.
        """
        ...


def unchanged(text: str) -> NormalizedText:
    """Return a text as it is."""
    return NormalizedText(text, Alignment.identity(len(text)))
