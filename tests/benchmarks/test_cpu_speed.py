"""What two trees' measurements are made into; the run itself takes minutes and is no test."""

from __future__ import annotations

import os

import pytest

from benchmarks import cpu_speed
from benchmarks.cpu_speed import BEFORE, TODAY, Samples, Speech, cpu_seconds, figures, stalled_s
from gateway.client import ClientError

SECOND = bytes(48_000)
"""Of audio."""


def _samples(rtf: float, ttfa_s: float, audio_s_per_s: float, wrong: int) -> Samples:
    return Samples(
        rtf=[rtf, 9.0, rtf],
        ttfa_s=[ttfa_s, ttfa_s, 9.0],
        long_ttfa_s=[2 * ttfa_s],
        cpu_s_per_audio_s=[rtf],
        many_audio_s_per_s=[audio_s_per_s, audio_s_per_s, 0.1],
        many_cpu_s_per_audio_s=[rtf],
        many_ttfa_s=[ttfa_s],
        many_stalled_share=[0.25, 0.75],
        many_refused=[1, 2],
        word_errors=[wrong, 0, wrong, 0],
        words=[10, 10, 10, 10],
    )


def test_ratios_are_of_medians_of_today_over_before_and_word_errors_have_bounds() -> None:
    found = figures({BEFORE: _samples(0.8, 0.5, 1.0, 2), TODAY: _samples(0.4, 0.2, 3.0, 1)})
    ratios = ("rtf_ratio", "ttfa_ratio", "ttfa_long_ratio", "xrt_12_callers_ratio")
    assert [found[name] for name in ratios] == [0.5, 0.4, 0.4, 3.0]
    assert (found["ttfa_ms_today"], found["wer_before"], found["refused_12_callers_today"]) == (200.0, 0.1, 3.0)
    assert found["stalled_12_callers_today"] == 0.5
    # The bounds are of both trees in the same sentences.
    assert found["wer_low"] < found["wer_today"] - found["wer_before"] == -0.05 < found["wer_high"] <= 0


@pytest.mark.parametrize(
    ("arrivals", "waited_s"),
    [
        ([(5.0, SECOND), (5.5, SECOND), (7.0, SECOND)], 0.0),
        ([(5.0, SECOND), (6.5, SECOND), (7.0, SECOND)], 0.5),
        ([(5.0, SECOND), (8.0, SECOND), (9.5, SECOND)], 2.5),
    ],
)
def test_a_playback_waits_for_pieces_that_come_late(arrivals: list[tuple[float, bytes]], waited_s: float) -> None:
    assert stalled_s(arrivals) == pytest.approx(waited_s)


def test_a_refused_caller_asks_again_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = ClientError("the gateway answered 429: later")
    answers = [refusal, refusal, None, None]

    def speak(url: str, text: str, seed: int) -> Speech:
        error = answers.pop(0)
        if error is not None:
            raise error
        return Speech(text, 0.1, 0.2, 1.0, 0.0, SECOND)

    monkeypatch.setattr(cpu_speed, "_speak", speak)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    first, second = cpu_speed._many_callers("http://unused", 1, seed=1)
    assert (first.refused, second.refused) == (2, 0)


def test_cpu_time_counts_a_process_and_what_it_started() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert cpu_seconds(2**22 + 1) == 0.0
