"""Finds words in a transcript that its text does not have, and tells which of them repeat what was just said. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from cosydit.certify.recognition import RATE_HZ, FloatArray, words_of
from lab.ears.moonshine import Recogniser

LEAST_LETTERS = 4
"""By so many letters a stretch that was heard otherwise is longer than its text, where words were added to it. Less is
another spelling: `more over` for `moreover`, `a spallier` for `espalier`."""
NEAR_WORDS = 8
"""A repetition stands so near to what it repeats."""
LONGEST_PART_S, SHORTEST_PART_S = 18.0, 8.0
"""Bounds of what a recogniser hears at once: a small neural one loses the thread of more."""
_FRAME = RATE_HZ // 50
_PAUSE_FRAMES = 10


@dataclass(frozen=True)
class Addition:
    """One stretch of words that the text does not have."""

    words: tuple[str, ...]
    is_repeat: bool
    """Whether all its words stand beside it, in the same order."""


def additions(text: str, transcript: str) -> list[Addition]:
    """Return what was heard beyond a text, in order; a word that was heard as another one is no addition."""
    wanted, heard = words_of(text), words_of(transcript)
    found = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, wanted, heard, autojunk=False).get_opcodes():
        more_letters = len("".join(heard[j1:j2])) - len("".join(wanted[i1:i2]))
        if kind == "insert" or (kind == "replace" and j2 - j1 > i2 - i1 and more_letters >= LEAST_LETTERS):
            found.append(Addition(tuple(heard[j1:j2]), _is_repeat(heard, j1, j2)))
    return found


def _is_repeat(heard: Sequence[str], start: int, end: int) -> bool:
    """Tell whether words say what stands just before or behind them."""
    words, size = heard[start:end], end - start
    beside = (heard[max(0, start - NEAR_WORDS) : start], heard[end : end + NEAR_WORDS])
    return any(words == side[at : at + size] for side in beside for at in range(len(side) - size + 1))


def transcribe_long(recogniser: Recogniser, samples: FloatArray) -> str:
    """Return what a recogniser hears of [N] mono float32 in +-1 at 16 kHz of any length, part by part."""
    return " ".join(recogniser.transcribe(part) for part in parts_of(samples))


def parts_of(samples: FloatArray) -> list[FloatArray]:
    """Cut audio at 16 kHz at its quietest 200 ms, so that each part is short enough to be heard at once."""
    parts = []
    while len(samples) > LONGEST_PART_S * RATE_HZ:
        frames = samples[int(SHORTEST_PART_S * RATE_HZ) : int(LONGEST_PART_S * RATE_HZ)].astype(np.float64)
        energy = (frames[: len(frames) // _FRAME * _FRAME].reshape(-1, _FRAME) ** 2).mean(axis=1)
        quietest = int(np.convolve(energy, np.ones(_PAUSE_FRAMES), "valid").argmin()) + _PAUSE_FRAMES // 2
        end = int(SHORTEST_PART_S * RATE_HZ) + quietest * _FRAME
        parts.append(samples[:end])
        samples = samples[end:]
    return [*parts, samples]
