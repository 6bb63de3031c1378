"""Speed without pitch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import FloatArray
from tests.gateway.audio.signals import cut, piece_lengths, speech_like, tone

pytest.importorskip("av", reason="the audio extra is not installed")
from gateway.audio.tempo import TempoChanger

SPEEDS = [0.25, 0.4, 0.5, 0.8, 1.01, 1.5, 2.0, 2.5, 4.0]


def played(pieces: list[FloatArray], speed: float) -> FloatArray:
    changer = TempoChanger(speed)
    return np.concatenate([*map(changer.push, pieces), changer.finish()])


def peak_hz(samples: FloatArray) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * 24_000 / len(samples))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30_000), st.floats(0.25, 4.0))
def test_the_duration_is_the_inputs_over_the_speed(samples: int, speed: float) -> None:
    assert len(played([speech_like(samples)], speed)) == round(samples / speed)


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_pitch_stays_and_nothing_clicks(speed: float) -> None:
    got = played(cut(tone(220, 24_000), [601] * 39), speed)

    assert peak_hz(got) == pytest.approx(220, abs=2)
    loudest_step = np.abs(np.diff(got[240:-240])).max()
    assert loudest_step < 1.15 * np.abs(np.diff(tone(220, 24_000))).max()


@settings(max_examples=25, deadline=None)
@given(piece_lengths, st.sampled_from(SPEEDS))
def test_how_the_input_is_cut_does_not_matter(lengths: list[int], speed: float) -> None:
    samples = speech_like(12_000)

    np.testing.assert_array_equal(played(cut(samples, lengths), speed), played([samples], speed))


@pytest.mark.parametrize("speed", SPEEDS)
def test_each_moment_comes_when_the_speed_says(speed: float) -> None:
    low_then_high = np.concatenate([tone(200, 24_000), tone(800, 24_000)])

    got = played([low_then_high], speed)

    around = round(0.06 * 24_000)
    change = round(24_000 / speed)
    assert peak_hz(got[: change - around]) == pytest.approx(200, abs=4)
    assert peak_hz(got[change + around :]) == pytest.approx(800, abs=4)


@pytest.mark.parametrize(("speed", "most_s"), [(0.25, 0.1), (0.9, 0.1), (1.1, 0.1), (2.0, 0.1), (4.0, 0.22)])
def test_little_is_held_back(speed: float, most_s: float) -> None:
    changer, got_samples, worst_s = TempoChanger(speed), 0, 0.0
    for taken, piece in enumerate(cut(speech_like(24_000), [240] * 99), start=1):
        got_samples += len(changer.push(piece))
        worst_s = max(worst_s, taken * 0.01 - got_samples * speed / 24_000)

    assert worst_s <= most_s
