"""How high a voice reaches is measured where its source hisses, whatever the timings of the two."""

from __future__ import annotations

import numpy as np
import pytest

from lab.ears.bandwidth import RATE_HZ, FloatArray, bandwidth, warped_pairs


def speech(hum_s: float, hiss_s: float, upper_hz: float) -> FloatArray:
    """A hum, a hiss from 3.5 kHz to `upper_hz`, a hum."""
    time = np.arange(int(hum_s * RATE_HZ)) / RATE_HZ
    hum = 0.3 * sum(np.sin(2 * np.pi * 150 * k * time) / k for k in range(1, 8))
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal(int(hiss_s * RATE_HZ)))
    at = np.fft.rfftfreq(int(hiss_s * RATE_HZ), 1 / RATE_HZ)
    hiss = 0.1 * np.fft.irfft(np.where((at > 3500) & (at < upper_hz), spectrum, 0), int(hiss_s * RATE_HZ))
    return np.asarray(np.concatenate([hum, hiss, hum]), np.float32)


def test_a_narrow_hiss_reaches_less_high_whatever_the_timing() -> None:
    found = bandwidth(speech(0.5, 0.2, 7000.0), speech(0.3, 0.3, 11_000.0))

    assert found is not None and 25 <= found.frames <= 60
    assert found.source_hz == pytest.approx(10_600, rel=0.05)
    assert found.spoken_hz / found.source_hz == pytest.approx(0.64, abs=0.06)


def test_equal_audio_reaches_equally_high() -> None:
    found = bandwidth(speech(0.3, 0.3, 9000.0), speech(0.3, 0.3, 9000.0))

    assert found is not None and found.spoken_hz == found.source_hz


def test_without_a_hiss_or_a_frame_nothing_is_measured() -> None:
    hum = speech(0.3, 0.3, 9000.0)[: int(0.25 * RATE_HZ)]

    assert bandwidth(hum, hum) is None
    assert bandwidth(hum[:100], hum) is None


def test_frames_are_matched_in_order_from_end_to_end() -> None:
    first, second = np.array([[0.0], [5.0], [9.0]]), np.array([[0.0], [0.0], [5.0], [9.0], [9.0]])

    assert warped_pairs(first, second).tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [2, 4]]
