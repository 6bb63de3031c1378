"""What an independent recogniser hears, its word errors, and how loud audio is.

The recogniser is pocketsphinx with the English model that comes inside its package. It has never heard our models, so
its errors on their speech mean something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
HELDOUT = Path(__file__).with_name("sentences.txt")
"""Sentences that no model of the demo voice was trained on."""
MARGIN_SECONDS = 0.3
"""Silence on both sides: the recogniser's noise tracking needs a start, and its search an end."""
FRAME_SECONDS = 0.01
SILENCE_LEVEL = 10 ** (-50 / 20)
"""-50 dB of full scale, as root mean square of 10 ms."""
_PCM16_PEAK = 32767.0
_WORD = re.compile(r"[a-z']+")


def heldout_sentences() -> list[str]:
    """Read the held-out sentences, one a line."""
    return HELDOUT.read_text("utf-8").splitlines()


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
        decode(self._decoder, samples)
        hypothesis = self._decoder.hyp()
        return "" if hypothesis is None else str(hypothesis.hypstr)


def decode(decoder: Any, samples: FloatArray) -> None:
    """Have a decoder hear [N] samples, with silence on both sides, as one whole utterance.

    Its level is then taken from itself, not from what was heard before.
    """
    margin = np.zeros(int(MARGIN_SECONDS * RATE_HZ), np.float32)
    padded = np.concatenate([margin, np.clip(samples, -1, 1), margin])
    decoder.start_utt()
    decoder.process_raw((padded * _PCM16_PEAK).astype("<i2").tobytes(), no_search=False, full_utt=True)
    decoder.end_utt()


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


def loudness(samples: FloatArray, rate_hz: int, frame_seconds: float) -> npt.NDArray[np.float64]:
    """Return the root mean square of each whole frame."""
    size = round(rate_hz * frame_seconds)
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    level: npt.NDArray[np.float64] = np.sqrt((frames**2).mean(axis=1))
    return level
