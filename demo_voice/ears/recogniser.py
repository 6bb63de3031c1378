"""An independent ear: pocketsphinx with the English model that comes inside its package.

It has never heard our models, so its errors on their speech mean something; its errors on the source engine's own
audio of the same sentences are the yardstick beside them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
_PCM16_PEAK = 32767.0
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
        margin = np.zeros(int(_MARGIN_SECONDS * RATE_HZ), np.float32)
        padded = np.concatenate([margin, np.clip(samples, -1, 1), margin])
        pcm = (padded * _PCM16_PEAK).astype("<i2").tobytes()
        self._decoder.start_utt()
        # As one whole utterance: its level is then taken from itself, not from what was heard before.
        self._decoder.process_raw(pcm, no_search=False, full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return "" if hypothesis is None else str(hypothesis.hypstr)
