"""What an independent recogniser hears: its transcripts, their word errors, and speech tokens that come back.

The recogniser is pocketsphinx with the English model that comes inside its package. It has never heard our models, so
its errors on their speech mean something; its errors on the source engine's own audio of the same sentences are the
yardstick beside them. A tokenizer never returns every token of synthesised audio either, so the source engine's own
audio, coded twice with a small shift, is the yardstick there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
_PCM16_PEAK = 32767.0
_FRAMES_A_SECOND = 100
_MARGIN_SECONDS = 0.3
"""Silence on both sides: the recogniser's noise tracking needs a start, and its search an end."""


class Recogniser(Protocol):
    """Anything that writes down what it hears."""

    def transcribe(self, samples: FloatArray) -> str:
        """Map [N] mono float32 in +-1 at 16 kHz to lower-case words."""
        ...


class SphinxRecogniser:
    """Pocketsphinx's own US English models. One thread; every call starts afresh."""

    def __init__(self) -> None:
        """Load the models (under a second).

        Raises:
            ImportError: pocketsphinx is not installed.
        """
        from pocketsphinx import Config, Decoder

        self._decoder = Decoder(Config(loglevel="FATAL"))

    def transcribe(self, samples: FloatArray) -> str:
        """Map [N] mono float32 in +-1 at 16 kHz to lower-case words; empty if nothing was understood."""
        _decode(self._decoder, samples)
        hypothesis = self._decoder.hyp()
        return "" if hypothesis is None else str(hypothesis.hypstr)


class SphinxAligner:
    """Pocketsphinx's alignment of known words with their audio. One thread; every call starts afresh."""

    def __init__(self) -> None:
        """Load the models.

        Raises:
            ImportError: pocketsphinx is not installed.
        """
        from pocketsphinx import Config, Decoder

        self._decoder = Decoder(Config(loglevel="FATAL"))

    def word_times(self, samples: FloatArray, words: Sequence[str]) -> list[tuple[float, float]] | None:
        """Return when each word begins and ends, in seconds.

        Args:
            samples: [N] mono float32 in +-1 at 16 kHz.
            words: in lower case, each one or more of the recogniser's.

        Returns:
            As many as there are words; None if it does not know one of them, or can't find them in the audio.
        """
        parts = [word.split() for word in words]
        known = [part for word in parts for part in word]
        if not all(self._decoder.lookup_word(part) for part in known):
            return None
        self._decoder.set_align_text(" ".join(known))
        try:
            _decode(self._decoder, samples)
        except RuntimeError:  # so it says that no path reached the end
            return None
        segments = [(s.word, s.start_frame, s.end_frame + 1) for s in self._decoder.seg() or ()]
        found = [(since, until) for word, since, until in segments if not word.startswith(("<", "[", "+"))]
        if len(found) != len(known):
            return None
        ends = np.cumsum([len(word) for word in parts])
        frames = [(found[end - len(word)][0], found[end - 1][1]) for end, word in zip(ends, parts, strict=True)]
        at = [tuple(frame / _FRAMES_A_SECOND - _MARGIN_SECONDS for frame in pair) for pair in frames]
        return [(since, until) for since, until in at]


def _decode(decoder: Any, samples: FloatArray) -> None:
    """Have a decoder hear [N] samples, with silence on both sides, as one whole utterance.

    Its level is then taken from itself, not from what was heard before.
    """
    margin = np.zeros(int(_MARGIN_SECONDS * RATE_HZ), np.float32)
    padded = np.concatenate([margin, np.clip(samples, -1, 1), margin])
    decoder.start_utt()
    decoder.process_raw((padded * _PCM16_PEAK).astype("<i2").tobytes(), no_search=False, full_utt=True)
    decoder.end_utt()


_WORD = re.compile(r"[a-z']+")


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


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case, without punctuation."""
    return _WORD.findall(text.lower().replace("’", "'"))


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


LEVELS = 3
DIGITS = 8
"""A token is a number of 8 ternary digits, one per quantised value."""


def token_agreement(asked: Sequence[int], heard: Sequence[int]) -> float:
    """Return the share of positions with the same token, over the shorter length.

    Raises:
        ValueError: one of them is empty.
    """
    count = _common(asked, heard)
    return float((np.asarray(asked[:count]) == np.asarray(heard[:count])).mean())


def digit_agreement(asked: Sequence[int], heard: Sequence[int]) -> float:
    """Return the share of equal digits: a token that is off by one value counts 7/8.

    Raises:
        ValueError: one of them is empty.
    """
    count = _common(asked, heard)
    places = LEVELS ** np.arange(DIGITS)
    digits = [np.asarray(tokens[:count])[:, None] // places % LEVELS for tokens in (asked, heard)]
    return float((digits[0] == digits[1]).mean())


def _common(asked: Sequence[int], heard: Sequence[int]) -> int:
    count = min(len(asked), len(heard))
    if not count:
        raise ValueError(f"got {len(asked)} tokens asked for and {len(heard)} heard, expected at least one of each")
    return count
