"""Seconds of audio in a sliding window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.access.access import DAY_S, HOUR_S, AudioUsage

Events = list[tuple[float, float]]
EVENTS = st.lists(st.tuples(st.floats(0, 20_000), st.floats(0.1, 100)), max_size=30)
SLICE_S = 60.0


def used(events: Events) -> tuple[AudioUsage, float]:
    """Count audio, each after a pause; return the time of the last."""
    usage, now_s = AudioUsage(), 0.0
    for pause_s, audio_s in events:
        now_s += pause_s
        usage.add(audio_s, now_s)
    return usage, now_s


def exact(events: Events, window_s: float) -> float:
    """Audio that was given in the last `window_s`."""
    now_s, at_s, total_s = sum(pause for pause, _ in events), 0.0, 0.0
    for pause_s, audio_s in events:
        at_s += pause_s
        total_s += audio_s if at_s > now_s - window_s else 0.0
    return total_s


@given(EVENTS)
def test_a_window_forgets_nothing_early_and_at_most_a_minute_late(events: Events) -> None:
    usage, now_s = used(events)
    for window_s in (HOUR_S, DAY_S - SLICE_S):
        found = usage.within(window_s, now_s)
        assert exact(events, window_s) - 1e-6 <= found <= exact(events, window_s + SLICE_S) + 1e-6


@given(EVENTS, st.floats(0.5, 500))
def test_after_the_wait_there_is_room_and_not_before(events: Events, limit_s: float) -> None:
    usage, now_s = used(events)
    wait_s = usage.wait_s(limit_s, HOUR_S, now_s)
    assert usage.within(HOUR_S, now_s + wait_s + 1e-3) < limit_s + 1e-6
    if wait_s > 0:
        assert usage.within(HOUR_S, now_s + wait_s - 1e-3) >= limit_s - 1e-6


def test_a_day_of_speech_takes_bounded_memory() -> None:
    usage = AudioUsage()
    for second in range(0, int(3 * DAY_S), 7):
        usage.add(7.0, float(second))
    assert len(usage._slices) <= DAY_S / SLICE_S + 1
    assert usage.within(DAY_S, 3 * DAY_S - 1) >= DAY_S - 7
