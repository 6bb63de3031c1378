"""How far audio may be sent ahead of its listener."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery import Pacer
from tests.gateway.fakes import ManualClock

RUN_AHEAD_S = 2.0


def send(pacer: Pacer, clock: ManualClock, audio_s: float) -> None:
    while (wait_s := pacer.wait_s(audio_s)) > 0:
        clock.seconds += wait_s
    pacer.sent(audio_s)


def test_the_run_ahead_goes_at_once_and_the_rest_in_real_time() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    for _ in range(20):
        send(pacer, clock, 0.5)
    assert clock.seconds == pytest.approx(20 * 0.5 - RUN_AHEAD_S)


def test_time_without_audio_is_not_caught_up() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    send(pacer, clock, 1.0)
    clock.seconds += 60.0
    pacer.sent(RUN_AHEAD_S)
    assert pacer.wait_s(0.5) == pytest.approx(0.5)


def test_a_piece_longer_than_the_run_ahead_goes_when_all_is_played() -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    send(pacer, clock, 5.0)
    assert clock.seconds == 0
    assert pacer.wait_s(5.0) == pytest.approx(5.0)


def test_an_endless_run_ahead_never_waits() -> None:
    pacer = Pacer(ManualClock(), math.inf)
    pacer.sent(3600.0)
    assert pacer.wait_s(3600.0) == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), max_size=50))
def test_never_more_than_the_run_ahead_waits_to_be_played(steps: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    pacer = Pacer(clock, RUN_AHEAD_S)
    for audio_s, pause_s in steps:
        send(pacer, clock, audio_s)
        assert pacer.ahead_s <= RUN_AHEAD_S + 1e-3 + 1e-6
        clock.seconds += pause_s
