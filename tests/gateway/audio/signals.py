"""Sounds to encode, ways to cut them, and how far one is from another."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gateway.audio import AudioEncoder
from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ


def tone(frequency_hz: float, samples: int, rate_hz: int = SAMPLE_RATE_HZ, amplitude: float = 0.5) -> FloatArray:
    """Return [samples] of a sine."""
    return (amplitude * np.sin(2 * np.pi * frequency_hz * np.arange(samples) / rate_hz)).astype(np.float32)


def speech_like(samples: int) -> FloatArray:
    """Return [samples] of a voice-like sound that fits onto itself at no other place: a hum that rises and swells."""
    time_s = np.arange(samples) / SAMPLE_RATE_HZ
    phase = 2 * np.pi * (120 * time_s + 60 * time_s**2)
    hum = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 12))
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 3.1 * time_s)
    return (0.2 * hum * swell).astype(np.float32)


def cut(samples: FloatArray, lengths: list[int]) -> list[FloatArray]:
    """Cut into pieces of these lengths, the last taking the rest."""
    return np.split(samples, np.minimum(np.cumsum(lengths), len(samples))) if lengths else [samples]


piece_lengths = st.lists(st.integers(0, 4000), max_size=8)


def encoded(encoder: AudioEncoder, pieces: list[FloatArray]) -> bytes:
    """Return all bytes of an encoder fed with pieces."""
    with encoder:
        return b"".join([*map(encoder.encode, pieces), encoder.finish()])


def snr_db(got: FloatArray, wanted: FloatArray) -> float:
    """Return how loud `wanted` is over the difference."""
    noise = np.square(got - wanted, dtype=np.float64).sum()
    return float(10 * np.log10(np.square(wanted, dtype=np.float64).sum() / max(noise, 1e-30)))


def best_lag(got: FloatArray, wanted: FloatArray, max_samples: int) -> tuple[int, float]:
    """Return by how many samples `got` comes later, and its correlation with `wanted` there."""
    scores = [float(np.corrcoef(_shifted(got, lag, len(wanted)), wanted)[0, 1]) for lag in range(max_samples)]
    lag = int(np.argmax(scores))
    return lag, scores[lag]


def _shifted(samples: FloatArray, lag: int, length: int) -> FloatArray:
    part = samples[lag : lag + length]
    return np.pad(part, (0, length - len(part)))
