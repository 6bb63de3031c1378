"""Sample rate conversion: the exact 16 to 24 kHz step of the flow's mel, and any rate to 16 kHz for prompts."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np

from token2wav_service.types import FloatArray

_ORIGINAL, _NEW = 2, 3
"""16 kHz : 24 kHz, reduced."""
_LOWPASS_ZEROS = 6
"""Zero crossings of the sinc on each side."""
_ROLLOFF = 0.99
"""Cutoff as a share of the lower Nyquist frequency."""


def resample_16k_to_24k(audio_16k: FloatArray) -> FloatArray:
    """Resample with torchaudio's default windowed sinc, without torchaudio.

    Source: specification section 10 (kernel computed in float64, applied in float32).

    Args:
        audio_16k: [N] float32.

    Returns:
        [ceil(3 N / 2)] float32.
    """
    kernel, width = _sinc_kernel()
    padded = np.pad(np.asarray(audio_16k, np.float32), (width, width + _ORIGINAL))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[1])[::_ORIGINAL]
    interleaved: FloatArray = (windows @ kernel.T).reshape(-1)
    return interleaved[: ceil(_NEW * len(audio_16k) / _ORIGINAL)]


def resample_poly(samples: FloatArray, from_hz: int, to_hz: int) -> FloatArray:
    """Resample [N] to [ceil(N * to_hz / from_hz)] float32 with a polyphase low-pass filter."""
    if from_hz == to_hz:
        return samples
    from scipy import signal  # it takes a while to import, and most prompts are at 16 kHz

    divisor = gcd(from_hz, to_hz)
    resampled = signal.resample_poly(samples.astype(np.float64), to_hz // divisor, from_hz // divisor)
    return np.asarray(resampled, np.float32)


@lru_cache(maxsize=1)
def _sinc_kernel() -> tuple[FloatArray, int]:
    """Return [3, taps] float32 (one row per output phase) and the zeros to put in front."""
    cutoff = min(_ORIGINAL, _NEW) * _ROLLOFF
    width = ceil(_LOWPASS_ZEROS * _ORIGINAL / cutoff)
    taps = np.arange(-width, width + _ORIGINAL) / _ORIGINAL
    phases = np.arange(0, -_NEW, -1)[:, None] / _NEW
    t = np.clip((phases + taps[None, :]) * cutoff, -_LOWPASS_ZEROS, _LOWPASS_ZEROS)
    window = np.cos(t * np.pi / _LOWPASS_ZEROS / 2) ** 2
    return (np.sinc(t) * window * cutoff / _ORIGINAL).astype(np.float32), width
