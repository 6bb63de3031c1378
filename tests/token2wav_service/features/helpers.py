"""Prompts and files for the feature tests."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from tests import ASSETS
from token2wav_service.types import FloatArray


def golden() -> dict[str, FloatArray]:
    """Tensors of the golden feature set."""
    with np.load(ASSETS / "g_features" / "features.npz") as vectors:
        return {name: vectors[name] for name in vectors.files}


def tone(seconds: float, rate_hz: int = 16_000, frequency_hz: float = 440.0) -> FloatArray:
    """[N] float32 sine of amplitude 0.5."""
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    samples: FloatArray = (0.5 * np.sin(2 * np.pi * frequency_hz * time)).astype(np.float32)
    return samples


def noise(seconds: float, seed: int = 0) -> FloatArray:
    """[N] float32 Gaussian noise at 16 kHz."""
    return (0.1 * np.random.default_rng(seed).standard_normal(round(seconds * 16_000))).astype(np.float32)


def encoded(samples: FloatArray, rate_hz: int = 16_000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    """An audio file's bytes; `samples` is [N] or [N, channels]."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, format=kind, subtype=subtype)
    return buffer.getvalue()
