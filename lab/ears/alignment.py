"""When known words are heard, and which speech tokens come back when speech is coded again.

A tokenizer never returns every token of synthesised audio; the source engine's own audio, coded twice with a small
shift, is the yardstick.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cosydit.certify.recognition import MARGIN_SECONDS, FloatArray, decode

_FRAMES_A_SECOND = 100


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
            decode(self._decoder, samples)
        except RuntimeError:  # so it says that no path reached the end
            return None
        segments = [(s.word, s.start_frame, s.end_frame + 1) for s in self._decoder.seg() or ()]
        found = [(since, until) for word, since, until in segments if not word.startswith(("<", "[", "+"))]
        if len(found) != len(known):
            return None
        ends = np.cumsum([len(word) for word in parts])
        frames = [(found[end - len(word)][0], found[end - 1][1]) for end, word in zip(ends, parts, strict=True)]
        at = [tuple(frame / _FRAMES_A_SECOND - MARGIN_SECONDS for frame in pair) for pair in frames]
        return [(since, until) for since, until in at]


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
