"""The flow's log-mel: 80 bins at 50 Hz from 24 kHz audio. Source: specification section 10."""

from __future__ import annotations

import numpy as np

from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.mel_filters import periodic_hann, slaney_mel_filters
from token2wav_service.types import FloatArray

MEL_BINS = 80
WINDOW_SAMPLES = 1920
"""80 ms; also the FFT's length."""
HOP_SAMPLES = 480
HIGH_HZ = 8000.0

_MAGNITUDE_EPSILON = 1e-9
_LOG_FLOOR = 1e-5


def flow_mel_24k(audio_24k: FloatArray) -> FloatArray:
    """Turn audio into the log-mel the flow is conditioned on.

    Args:
        audio_24k: [N] float32 at 24 kHz, more than 720 samples (30 ms: the reflected edge).

    Returns:
        [N // 480, 80] float32.
    """
    edge = (WINDOW_SAMPLES - HOP_SAMPLES) // 2
    padded = np.pad(np.asarray(audio_24k, np.float32), edge, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_SAMPLES)[::HOP_SAMPLES]
    spectrum = np.fft.rfft(frames * periodic_hann(WINDOW_SAMPLES))
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + _MAGNITUDE_EPSILON)
    log_mel: FloatArray = np.log(np.maximum(magnitude @ flow_mel_filters().T, _LOG_FLOOR)).astype(np.float32)
    return log_mel


def flow_mel_filters() -> FloatArray:
    """Return the [80, 961] filter bank of `flow_mel_24k`."""
    return slaney_mel_filters(sample_rate_hz=SAMPLE_RATE_HZ, n_fft=WINDOW_SAMPLES, n_mels=MEL_BINS, high_hz=HIGH_HZ)
