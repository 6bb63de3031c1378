"""What an independent recogniser hears, and the audio that is kept.

The recogniser is pocketsphinx with the English model that comes inside its package. It has never heard our models, so
its errors on their speech mean something.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from cosydit.certify.check import CheckContext, Findings
from token2wav_service.contract import SAMPLE_RATE_HZ

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
AUDIO_FOLDER = "audio"
MARGIN_SECONDS = 0.3
"""Silence on both sides: the recogniser's noise tracking needs a start, and its search an end."""
_PCM16_PEAK = 32767.0
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")


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


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case, without punctuation; an apostrophe stays within a word."""
    return _WORD.findall(text.lower().replace("’", "'"))


def keep_audio(context: CheckContext, found: Findings, name: str, samples: FloatArray) -> None:
    """Write samples [N] at 24 kHz as Opus into the certificate's folder."""
    import soundfile

    file = f"{AUDIO_FOLDER}/{re.sub(r'[^a-z0-9-]+', '-', name.lower())}.opus"
    (context.plan.out_dir / AUDIO_FOLDER).mkdir(parents=True, exist_ok=True)
    audio = np.clip(np.nan_to_num(samples), -1, 1)
    soundfile.write(context.plan.out_dir / file, audio, SAMPLE_RATE_HZ, format="OGG", subtype="OPUS")
    found.audio.append(file)
