"""The speech tokenizer's log-mel: 128 bins at 100 Hz from 16 kHz audio. Source: specification section 10."""

from __future__ import annotations

import numpy as np

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
from token2wav_service.features.mel_filters import periodic_hann, slaney_mel_filters
from token2wav_service.types import FloatArray

MEL_BINS = 128
WINDOW_SAMPLES = 400
"""25 ms; also the FFT's length."""
HOP_SAMPLES = 160

_POWER_FLOOR = 1e-10
_DYNAMIC_RANGE = 8.0
"""log10 units kept below the loudest value."""
_OFFSET, _SCALE = 4.0, 4.0


def s3_log_mel(audio_16k: FloatArray) -> FloatArray:
    """Turn audio into the speech tokenizer's input.

    Args:
        audio_16k: [N] float32 at 16 kHz, more than 200 samples (the reflected edge).

    Returns:
        [128, N // 160] float32.
    """
    padded = np.pad(np.asarray(audio_16k, np.float32), WINDOW_SAMPLES // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_SAMPLES)[::HOP_SAMPLES][:-1]
    power = np.abs(np.fft.rfft(frames * periodic_hann(WINDOW_SAMPLES))) ** 2
    log_mel = np.log10(np.maximum(s3_mel_filters() @ power.T, _POWER_FLOOR))
    log_mel = np.maximum(log_mel, log_mel.max() - _DYNAMIC_RANGE)
    scaled: FloatArray = ((log_mel + _OFFSET) / _SCALE).astype(np.float32)
    return scaled


def s3_mel_filters() -> FloatArray:
    """Return the [128, 201] filter bank of `s3_log_mel`."""
    return slaney_mel_filters(sample_rate_hz=PROMPT_SAMPLE_RATE_HZ, n_fft=WINDOW_SAMPLES, n_mels=MEL_BINS)
