"""Mel filter banks: Slaney's (librosa's default) and Kaldi's. Pure numpy; knows nothing of audio."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from token2wav_service.types import FloatArray

Float64Array = npt.NDArray[np.float64]

CACHED_BANKS = 16
"""Distinct parameter sets kept; the service uses three."""

# Slaney's scale: linear to 1 kHz, logarithmic above.
_SLANEY_HZ_PER_MEL = 200.0 / 3
_SLANEY_BREAK_HZ = 1000.0
_SLANEY_BREAK_MEL = _SLANEY_BREAK_HZ / _SLANEY_HZ_PER_MEL
_SLANEY_LOG_STEP = np.log(6.4) / 27.0

# Kaldi's scale: mel = 1127 ln(1 + f / 700).
_KALDI_MEL_FACTOR = 1127.0
_KALDI_BREAK_HZ = 700.0


@lru_cache(maxsize=CACHED_BANKS)
def slaney_mel_filters(
    *, sample_rate_hz: int, n_fft: int, n_mels: int, low_hz: float = 0.0, high_hz: float | None = None
) -> FloatArray:
    """Return triangular filters of unit area on Slaney's mel scale.

    Every argument is part of the cache's key, so two banks are never confused.

    Args:
        high_hz: upper edge; None is half the sample rate.

    Returns:
        [n_mels, n_fft // 2 + 1] float32, read-only and shared.
    """
    upper = sample_rate_hz / 2 if high_hz is None else high_hz
    bins_hz = np.linspace(0, sample_rate_hz / 2, n_fft // 2 + 1)
    edges_hz = _slaney_to_hz(np.linspace(_slaney_from_hz(low_hz), _slaney_from_hz(upper), n_mels + 2))
    rising = (bins_hz[None, :] - edges_hz[:-2, None]) / np.diff(edges_hz)[:-1, None]
    falling = (edges_hz[2:, None] - bins_hz[None, :]) / np.diff(edges_hz)[1:, None]
    area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    return _frozen(np.maximum(0, np.minimum(rising, falling)) * area[:, None])


@lru_cache(maxsize=CACHED_BANKS)
def kaldi_mel_filters(*, sample_rate_hz: int, n_fft: int, n_mels: int, low_hz: float, high_hz: float) -> FloatArray:
    """Return filters that are triangles of height 1 on Kaldi's mel scale; the Nyquist bin weighs 0.

    Returns:
        [n_mels, n_fft // 2 + 1] float32, read-only and shared.
    """
    bins = _kaldi_from_hz(np.arange(n_fft // 2) * (sample_rate_hz / n_fft))
    edges = np.linspace(_kaldi_from_hz(np.float64(low_hz)), _kaldi_from_hz(np.float64(high_hz)), n_mels + 2)
    step = edges[1] - edges[0]
    rising = (bins[None, :] - edges[:-2, None]) / step
    falling = (edges[2:, None] - bins[None, :]) / step
    return _frozen(np.pad(np.maximum(0, np.minimum(rising, falling)), ((0, 0), (0, 1))))


def periodic_hann(length: int) -> FloatArray:
    """Return the [length] float32 Hann window whose period is its length."""
    window: FloatArray = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype(np.float32)
    return window


def _slaney_from_hz(hz: float) -> float:
    if hz < _SLANEY_BREAK_HZ:
        return hz / _SLANEY_HZ_PER_MEL
    return float(_SLANEY_BREAK_MEL + np.log(hz / _SLANEY_BREAK_HZ) / _SLANEY_LOG_STEP)


def _slaney_to_hz(mel: Float64Array) -> Float64Array:
    logarithmic = _SLANEY_BREAK_HZ * np.exp(_SLANEY_LOG_STEP * (mel - _SLANEY_BREAK_MEL))
    return np.where(mel < _SLANEY_BREAK_MEL, mel * _SLANEY_HZ_PER_MEL, logarithmic)


def _kaldi_from_hz(hz: Float64Array | np.float64) -> Float64Array:
    return np.asarray(_KALDI_MEL_FACTOR * np.log(1.0 + hz / _KALDI_BREAK_HZ))


def _frozen(bank: Float64Array) -> FloatArray:
    result: FloatArray = bank.astype(np.float32)
    result.setflags(write=False)
    return result
