"""The three spectra that the models read, and the filter banks behind them. Source: specification section 10.

The flow's log-mel has 80 bins at 50 Hz from 24 kHz audio. The speech tokenizer's log-mel has 128 bins at 100 Hz from
16 kHz audio. The speaker encoder reads Kaldi's log filter bank energies. Filter banks are Slaney's (librosa's default)
and Kaldi's. All is float32, as the original's. Transforms are SciPy's: they keep it, and other threads run meanwhile.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from scipy import fft

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, SAMPLE_RATE_HZ
from token2wav_service.types import FloatArray

FLOW_MEL_BINS = 80
FLOW_WINDOW_SAMPLES = 1920
"""Samples of the window and of the FFT, 80 ms."""
FLOW_HOP_SAMPLES = 480
FLOW_HIGH_HZ = 8000.0
"""Upper edge of the filters, but for CosyVoice3, whose filters reach 12 kHz."""

_MAGNITUDE_EPSILON = 1e-9
_LOG_FLOOR = 1e-5


def flow_mel_24k(audio_24k: FloatArray, high_hz: float = FLOW_HIGH_HZ) -> FloatArray:
    """Turn audio into the log-mel the flow is conditioned on.

    Args:
        audio_24k: [N] float32 at 24 kHz, more than 720 samples (30 ms: the reflected edge).
        high_hz: upper edge of the filters.

    Returns:
        [N // 480, 80] float32.
    """
    edge = (FLOW_WINDOW_SAMPLES - FLOW_HOP_SAMPLES) // 2
    padded = np.pad(np.asarray(audio_24k, np.float32), edge, mode="reflect")
    frames = sliding_window_view(padded, FLOW_WINDOW_SAMPLES)[::FLOW_HOP_SAMPLES]
    bins = 1 + int(high_hz * FLOW_WINDOW_SAMPLES / SAMPLE_RATE_HZ)  # no filter reads those above
    spectrum = fft.rfft(frames * periodic_hann(FLOW_WINDOW_SAMPLES))[:, :bins]
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + _MAGNITUDE_EPSILON)
    log_mel: FloatArray = np.log(np.maximum(magnitude @ flow_mel_filters(high_hz)[:, :bins].T, _LOG_FLOOR))
    return log_mel


def flow_mel_filters(high_hz: float = FLOW_HIGH_HZ) -> FloatArray:
    """Return the [80, 961] filter bank of `flow_mel_24k`."""
    return slaney_mel_filters(
        sample_rate_hz=SAMPLE_RATE_HZ, n_fft=FLOW_WINDOW_SAMPLES, n_mels=FLOW_MEL_BINS, high_hz=high_hz
    )


S3_MEL_BINS = 128
S3_WINDOW_SAMPLES = 400
"""Samples of the window and of the FFT, 25 ms."""
S3_HOP_SAMPLES = 160

_POWER_FLOOR = 1e-10
_DYNAMIC_RANGE = 8.0
"""Range kept below the loudest value, in log10 units."""
_OFFSET, _SCALE = 4.0, 4.0


def s3_log_mel(audio_16k: FloatArray) -> FloatArray:
    """Turn audio into the speech tokenizer's input.

    Args:
        audio_16k: [N] float32 at 16 kHz, more than 200 samples (the reflected edge).

    Returns:
        [128, N // 160] float32.
    """
    padded = np.pad(np.asarray(audio_16k, np.float32), S3_WINDOW_SAMPLES // 2, mode="reflect")
    frames = sliding_window_view(padded, S3_WINDOW_SAMPLES)[::S3_HOP_SAMPLES][:-1]
    power = np.abs(fft.rfft(frames * periodic_hann(S3_WINDOW_SAMPLES))) ** 2
    log_mel = np.log10(np.maximum(s3_mel_filters() @ power.T, _POWER_FLOOR))
    scaled: FloatArray = (np.maximum(log_mel, log_mel.max() - _DYNAMIC_RANGE) + _OFFSET) / _SCALE
    return scaled


def s3_mel_filters() -> FloatArray:
    """Return the [128, 201] filter bank of `s3_log_mel`."""
    return slaney_mel_filters(sample_rate_hz=PROMPT_SAMPLE_RATE_HZ, n_fft=S3_WINDOW_SAMPLES, n_mels=S3_MEL_BINS)


FBANK_MEL_BINS = 80
FBANK_WINDOW_SAMPLES = 400
FBANK_HOP_SAMPLES = 160
FBANK_FFT_SAMPLES = 512
FBANK_LOW_HZ = 20.0

_PRE_EMPHASIS = 0.97
_POVEY_EXPONENT = 0.85
_ENERGY_FLOOR = float(np.finfo(np.float32).eps)


def kaldi_fbank(audio_16k: FloatArray) -> FloatArray:
    """Compute 80 log energies every 10 ms; no dither, and the wave stays in +-1.

    Args:
        audio_16k: [N] float32 at 16 kHz, at least 400 samples.

    Returns:
        [1 + (N - 400) // 160, 80] float32.
    """
    samples = np.asarray(audio_16k, np.float32)
    emphasised = samples - _PRE_EMPHASIS * np.roll(samples, 1)
    frames, plain = (
        sliding_window_view(each, FBANK_WINDOW_SAMPLES)[::FBANK_HOP_SAMPLES] for each in (emphasised, samples)
    )
    # Kaldi takes a frame's mean from it before; its first sample has no part, as the window begins with 0.
    centred = frames - (1 - _PRE_EMPHASIS) * plain.mean(axis=1, keepdims=True)
    power = np.abs(fft.rfft(centred * _povey_window(), FBANK_FFT_SAMPLES)) ** 2
    energies: FloatArray = np.log(np.maximum(power @ _kaldi_mel_filters().T, _ENERGY_FLOOR))
    return energies


def speaker_fbank(audio_16k: FloatArray) -> FloatArray:
    """Return `kaldi_fbank` minus its mean over time: [T, 80] float32."""
    energies = kaldi_fbank(audio_16k)
    centred: FloatArray = energies - energies.mean(axis=0, keepdims=True)
    return centred


def _povey_window() -> FloatArray:
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FBANK_WINDOW_SAMPLES) / (FBANK_WINDOW_SAMPLES - 1))
    window: FloatArray = (hann**_POVEY_EXPONENT).astype(np.float32)
    return window


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
def slaney_mel_filters(*, sample_rate_hz: int, n_fft: int, n_mels: int, high_hz: float | None = None) -> FloatArray:
    """Return triangular filters of unit area on Slaney's mel scale.

    Every argument is part of the cache's key, so two banks are never confused.

    Args:
        high_hz: upper edge; None is half the sample rate.

    Returns:
        [n_mels, n_fft // 2 + 1] float32, read-only and shared.
    """
    upper = sample_rate_hz / 2 if high_hz is None else high_hz
    highest_bin_hz = sample_rate_hz * (n_fft // 2) / n_fft
    bins_hz = np.linspace(0, highest_bin_hz, n_fft // 2 + 1)
    edges_hz = _slaney_to_hz(np.linspace(0.0, _slaney_from_hz(upper), n_mels + 2))
    rising = (bins_hz[None, :] - edges_hz[:-2, None]) / np.diff(edges_hz)[:-1, None]
    falling = (edges_hz[2:, None] - bins_hz[None, :]) / np.diff(edges_hz)[1:, None]
    area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    return _frozen(np.maximum(0, np.minimum(rising, falling)) * area[:, None])


@lru_cache(maxsize=1)
def _kaldi_mel_filters() -> FloatArray:
    """Return the [80, 257] filter bank of `kaldi_fbank`: triangles of height 1; the Nyquist bin weighs 0."""
    bins_hz = np.arange(FBANK_FFT_SAMPLES // 2) * (PROMPT_SAMPLE_RATE_HZ / FBANK_FFT_SAMPLES)
    bins = _kaldi_from_hz(bins_hz)
    low, high = _kaldi_from_hz(np.array([FBANK_LOW_HZ, PROMPT_SAMPLE_RATE_HZ / 2]))
    edges = np.linspace(low, high, FBANK_MEL_BINS + 2)
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


def _kaldi_from_hz(hz: Float64Array) -> Float64Array:
    mel: Float64Array = _KALDI_MEL_FACTOR * np.log(1.0 + hz / _KALDI_BREAK_HZ)
    return mel


def _frozen(bank: Float64Array) -> FloatArray:
    result: FloatArray = bank.astype(np.float32)
    result.setflags(write=False)
    return result
