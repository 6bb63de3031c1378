"""Kaldi's log filter bank energies, the speaker encoder's input. Source: specification section 10."""

from __future__ import annotations

import numpy as np

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
from token2wav_service.features.mel_filters import kaldi_mel_filters
from token2wav_service.types import FloatArray

MEL_BINS = 80
WINDOW_SAMPLES = 400
HOP_SAMPLES = 160
FFT_SAMPLES = 512
LOW_HZ = 20.0
HIGH_HZ = PROMPT_SAMPLE_RATE_HZ / 2

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
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(audio_16k, np.float32), WINDOW_SAMPLES)
    frames = windows[::HOP_SAMPLES].astype(np.float64)
    frames -= frames.mean(axis=1, keepdims=True)
    previous = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    emphasised = (frames - _PRE_EMPHASIS * previous) * _povey_window()
    power = np.abs(np.fft.rfft(emphasised, FFT_SAMPLES)) ** 2
    energies: FloatArray = np.log(np.maximum(power @ _filters().T, _ENERGY_FLOOR)).astype(np.float32)
    return energies


def speaker_fbank(audio_16k: FloatArray) -> FloatArray:
    """Return `kaldi_fbank` minus its mean over time: [T, 80] float32."""
    energies = kaldi_fbank(audio_16k)
    centred: FloatArray = energies - energies.mean(axis=0, keepdims=True)
    return centred


def _povey_window() -> FloatArray:
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_SAMPLES) / (WINDOW_SAMPLES - 1))
    window: FloatArray = (hann**_POVEY_EXPONENT).astype(np.float32)
    return window


def _filters() -> FloatArray:
    return kaldi_mel_filters(
        sample_rate_hz=PROMPT_SAMPLE_RATE_HZ, n_fft=FFT_SAMPLES, n_mels=MEL_BINS, low_hz=LOW_HZ, high_hz=HIGH_HZ
    )
