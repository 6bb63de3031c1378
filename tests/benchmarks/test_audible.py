"""The first sound of an answer, and when a listener hears it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lib.audible import LeadingSilence, heard_at_s, nearest_rank
from cosydit.bench.types import AudioArrival

RATE_HZ = 24_000


def tone(seconds: float, level: float) -> np.ndarray:
    return (level * np.sin(np.arange(int(seconds * RATE_HZ)) * 0.2)).astype(np.float32)


@pytest.mark.parametrize("piece", [100, 480, 5000])
def test_silence_ends_at_the_first_of_two_loud_frames(piece: int) -> None:
    audio = np.concatenate([np.full(int(0.17 * RATE_HZ), 0.2, np.float32), tone(0.3, 0.1)])
    silence = LeadingSilence(RATE_HZ)
    for begin in range(0, len(audio), piece):
        silence.feed(audio[begin : begin + piece])
    assert silence.seconds == pytest.approx(0.16, abs=0.011)


def test_a_click_is_no_sound_and_quiet_noise_is_silence() -> None:
    silence = LeadingSilence(RATE_HZ)
    silence.feed(np.concatenate([tone(0.1, 0.001), np.ones(1, np.float32), tone(0.3, 0.001)]))
    assert silence.seconds is None or silence.seconds > 0.05
    quiet = LeadingSilence(RATE_HZ)
    quiet.feed(tone(1.0, 0.004))
    assert quiet.seconds is None


def test_a_listener_waits_for_late_audio_before_the_first_sound() -> None:
    arrivals = [AudioArrival(0.05, 0.1), AudioArrival(0.4, 1.0)]
    assert heard_at_s(arrivals, 0.02) == pytest.approx(0.07)
    assert heard_at_s(arrivals, 0.15) == pytest.approx(0.45)
    with pytest.raises(ValueError, match="expected more"):
        heard_at_s(arrivals, 1.2)


def test_percentiles_are_values_that_were_measured() -> None:
    assert nearest_rank([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert nearest_rank([3.0, 1.0, 2.0, 4.0], 95) == 4.0
    with pytest.raises(ValueError, match="no values"):
        nearest_rank([], 50)
