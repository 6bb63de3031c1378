"""Seconds of audio in a sliding window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import DAY_S, HOUR_S, MINUTE_S, CallerLedger
from tests.gateway.fakes import ManualClock

Events = list[tuple[float, float]]
EVENTS = st.lists(st.tuples(st.floats(0, 20_000), st.floats(0.1, 100)), max_size=30)


def used(events: Events) -> CallerLedger:
    """Count audio, each after a pause."""
    clock = ManualClock()
    ledger = CallerLedger(clock)
    for pause_s, audio_s in events:
        clock.seconds += pause_s
        ledger.add_audio("anna", audio_s)
    return ledger


def exact(events: Events, window_s: float) -> float:
    """Audio that was given in the last `window_s`."""
    now_s, at_s, total_s = sum(pause for pause, _ in events), 0.0, 0.0
    for pause_s, audio_s in events:
        at_s += pause_s
        total_s += audio_s if at_s > now_s - window_s else 0.0
    return total_s


@given(EVENTS)
def test_a_window_forgets_nothing_early_and_at_most_a_minute_late(events: Events) -> None:
    ledger = used(events)
    for window_s in (HOUR_S, DAY_S - MINUTE_S):
        found = ledger.audio_s("anna", window_s)
        assert exact(events, window_s) - 1e-6 <= found <= exact(events, window_s + MINUTE_S) + 1e-6


@given(EVENTS, st.floats(0.5, 500))
def test_after_the_wait_there_is_room_and_not_before(events: Events, limit_s: float) -> None:
    ledger = used(events)
    wait_s = ledger.audio_wait_s("anna", limit_s, HOUR_S)
    ledger._clock.seconds += wait_s + 1e-3  # type: ignore[attr-defined]
    assert ledger.audio_s("anna", HOUR_S) < limit_s + 1e-6
    if wait_s > 0:
        ledger._clock.seconds -= 2e-3  # type: ignore[attr-defined]
        assert ledger.audio_s("anna", HOUR_S) >= limit_s - 1e-6


def test_minutes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = used([(1200.0, 7.0)] * 200)
    assert ledger._db.execute("SELECT COUNT(*) FROM audio").fetchone()[0] <= DAY_S / 1200.0 + 1
    monkeypatch.setattr("gateway.ledger.MAX_MINUTES", 2)
    for name in ("bob", "carl", "bob"):
        ledger.add_audio(name, 1.0)
    assert [ledger.audio_s(name, DAY_S) for name in ("anna", "bob", "carl")] == [0.0, 2.0, 1.0]
