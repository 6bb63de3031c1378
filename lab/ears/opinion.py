"""What listeners would say of speech, estimated: DNSMOS, by the models inside the package `speechmos`.

P.808 is one overall score, P.835 three: the speech's own, the background's and the overall. All go from 1 (bad) to 5
(excellent). The package and its models are Microsoft's, under the MIT licence. It reads its files only, so nothing that
the package depends on is needed. Sources: DNSMOS (Reddy et al., arXiv 2010.15258), DNSMOS P.835 (arXiv 2110.01763).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from token2wav_service.features.mel import periodic_hann, slaney_mel_filters

FloatArray = npt.NDArray[np.float32]

RATE_HZ = 16_000
WINDOW_SAMPLES = round(9.01 * RATE_HZ)
"""The models hear windows of this length; shorter audio is repeated until it fills one."""
HOP_SAMPLES = RATE_HZ
MEL_BINS = 120
_MEL_FFT, _MEL_HOP = 321, 160
_MEL_CUT = 160
"""Samples at a window's end that the P.808 model does not hear."""
_TOP_DB, _POWER_FLOOR = 80.0, 1e-10
_MODELS = "dnsmos_models"
_P808, _P835 = "model_v8.onnx", "sig_bak_ovr.onnx"
_SIGNAL = (-0.08397278, 1.22083953, 0.0052439)
_BACKGROUND = (-0.13166888, 1.60915514, -0.39604546)
_OVERALL = (-0.06766283, 1.11546468, 0.04602535)
"""Polynomials from the P.835 model's answers to scores, as the package has them."""


@dataclass(frozen=True)
class Opinion:
    """Scores of one audio, 1 to 5."""

    p808: float
    signal: float
    background: float
    overall: float


class Critic(Protocol):
    """Anything that scores speech."""

    def opinion(self, samples: FloatArray) -> Opinion:
        """Score [N] mono float32 in +-1 at 16 kHz."""
        ...


class DnsMos:
    """The two models. One thread."""

    def __init__(self) -> None:
        """Load the models (under a second).

        Raises:
            ImportError: speechmos is not installed.
        """
        from onnxruntime import InferenceSession, SessionOptions

        found = find_spec("speechmos")
        if found is None or not found.submodule_search_locations:
            raise ImportError("speechmos is not installed; pip install --no-deps speechmos")
        models = Path(found.submodule_search_locations[0]) / _MODELS
        options = SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._p808 = InferenceSession(models / _P808, options, providers=providers)
        self._p835 = InferenceSession(models / _P835, options, providers=providers)

    def opinion(self, samples: FloatArray) -> Opinion:
        """Score [N] mono float32 in +-1 at 16 kHz: the mean over windows of 9 s, one a second.

        Raises:
            ValueError: there are no samples.
        """
        scores = [self._window(window) for window in windows(samples)]
        return mean_opinion(scores)

    def _window(self, window: FloatArray) -> Opinion:
        mel = p808_mel(window[:-_MEL_CUT])[None]
        p808 = self._p808.run(None, {self._p808.get_inputs()[0].name: mel})[0][0][0]
        answers = self._p835.run(None, {self._p835.get_inputs()[0].name: window[None]})[0][0]
        signal, background, overall = (
            float(np.polyval(curve, answer))
            for curve, answer in zip((_SIGNAL, _BACKGROUND, _OVERALL), answers, strict=True)
        )
        return Opinion(float(p808), signal, background, overall)


def mean_opinion(opinions: Sequence[Opinion]) -> Opinion:
    """Average each score.

    Raises:
        ValueError: there are none.
    """
    if not opinions:
        raise ValueError("got no opinions, expected at least one")
    names = [field.name for field in fields(Opinion)]
    return Opinion(**{name: float(np.mean([getattr(o, name) for o in opinions])) for name in names})


def windows(samples: FloatArray) -> list[FloatArray]:
    """Return the windows that are heard, each [144160] float32.

    Raises:
        ValueError: there are no samples.
    """
    if not len(samples):
        raise ValueError("got no samples, expected some")
    # Doubled, as the package does it, so that scores compare with others'.
    audio = np.clip(samples, -1, 1).astype(np.float32)
    while len(audio) < WINDOW_SAMPLES:
        audio = np.concatenate([audio, audio])
    starts = range(0, len(audio) - WINDOW_SAMPLES + 1, HOP_SAMPLES)
    return [audio[start : start + WINDOW_SAMPLES] for start in starts]


def p808_mel(samples: FloatArray) -> FloatArray:
    """Turn samples into the P.808 model's input: [N // 160, 120] float32, decibels below the loudest, scaled."""
    padded = np.pad(samples, _MEL_FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _MEL_FFT)[::_MEL_HOP]
    power = np.abs(np.fft.rfft(frames * periodic_hann(_MEL_FFT))) ** 2
    mel = power @ slaney_mel_filters(sample_rate_hz=RATE_HZ, n_fft=_MEL_FFT, n_mels=MEL_BINS).T
    decibels = 10 * np.log10(np.maximum(mel, _POWER_FLOOR) / max(mel.max(), _POWER_FLOOR))
    scaled: FloatArray = ((np.maximum(decibels, -_TOP_DB) + 40) / 40).astype(np.float32)
    return scaled
