"""Word errors of what a recogniser heard, and sentences that no model of the demo voice was trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosydit.certify.recognition import words_of

HELDOUT = Path(__file__).with_name("sentences.txt")


def heldout_sentences() -> list[str]:
    """Read the held-out sentences, one a line."""
    return HELDOUT.read_text("utf-8").splitlines()


@dataclass(frozen=True)
class WordErrors:
    """Errors of one or more transcripts; adds up."""

    errors: int
    """Substitutions, deletions and insertions of the cheapest alignment."""
    words: int
    """Words of the reference texts."""

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(self.errors + other.errors, self.words + other.words)

    @property
    def rate(self) -> float:
        """Errors per reference word; can pass 1.

        Raises:
            ValueError: there are no reference words.
        """
        if not self.words:
            raise ValueError("got no reference words, expected at least one; is the list of texts empty?")
        return self.errors / self.words


def word_errors(reference: str, hypothesis: str) -> WordErrors:
    """Align a transcript to its reference by the fewest edits."""
    expected = words_of(reference)
    return WordErrors(edit_distance(expected, words_of(hypothesis)), len(expected))


def total(errors: Iterable[WordErrors]) -> WordErrors:
    """Sum over utterances: long ones weigh more than short ones."""
    return sum(errors, WordErrors(0, 0))


def edit_distance(expected: Sequence[object], got: Sequence[object]) -> int:
    """Return the fewest insertions, deletions and substitutions that turn one sequence into the other."""
    row = list(range(len(got) + 1))
    for count, item in enumerate(expected, start=1):
        previous, row = row, [count]
        for index, other in enumerate(got, start=1):
            row.append(min(previous[index] + 1, row[-1] + 1, previous[index - 1] + (item != other)))
    return row[-1]
