"""What is expected of open streams from those that ended."""

from __future__ import annotations

import pytest

from gateway.routing.slot_forecast import MANY_STREAMS, REMEMBERED, OpenStreams, SlotForecast, StreamDurations
from tests.gateway.fakes import ManualClock


def _durations(*seconds: float) -> StreamDurations:
    durations = StreamDurations()
    for each in seconds:
        durations.add(each)
    return durations


def test_the_rest_of_a_stream_is_the_mean_rest_of_those_that_lasted_longer() -> None:
    durations = _durations(2.0, 4.0, 6.0)
    assert durations.remaining_s(0.0) == 4.0
    assert durations.remaining_s(3.0) == 2.0
    assert durations.remaining_s(5.0) == 1.0


def test_a_stream_older_than_all_known_lasts_as_long_again() -> None:
    assert _durations(2.0).remaining_s(7.0) == 7.0
    assert _durations().remaining_s(3.0) == 3.0


def test_old_durations_are_forgotten() -> None:
    durations = _durations(100.0, *[1.0] * REMEMBERED)
    assert durations.mean_s == 1.0
    assert durations.remaining_s(0.5) == 0.5


def _forecast(clock: ManualClock, *seconds: float) -> SlotForecast:
    return SlotForecast(clock, _durations(*seconds))


def test_slots_come_free_in_the_order_of_their_expected_ends() -> None:
    clock = ManualClock()
    clock.seconds = 10.0
    forecast = _forecast(clock, 8.0)
    streams = [OpenStreams([4.0, 9.0], others=0)]
    assert [forecast.nth_s(nth, lambda: streams) for nth in range(2)] == [2.0, 7.0]


def test_beyond_the_open_streams_each_slot_is_held_for_the_mean_again() -> None:
    forecast = _forecast(ManualClock(), 8.0)
    assert forecast.nth_s(3, lambda: [OpenStreams([0.0, 0.0], others=0)]) == pytest.approx(16.0)


def test_streams_of_other_gateways_are_spread_over_the_mean() -> None:
    forecast = _forecast(ManualClock(), 8.0)
    streams = [OpenStreams([], others=4)]
    assert [forecast.nth_s(nth, lambda: streams) for nth in range(4)] == [2.0, 4.0, 6.0, 8.0]


def test_nothing_open_means_nothing_to_wait_for() -> None:
    assert _forecast(ManualClock(), 8.0).nth_s(0, list) is None


def test_a_storm_of_refusals_asks_for_many_streams_only_now_and_then() -> None:
    clock = ManualClock()
    forecast = _forecast(clock, 8.0)
    asked = []

    def streams() -> list[OpenStreams]:
        asked.append(clock.seconds)
        return [OpenStreams([0.0] * MANY_STREAMS, others=0)]

    for _ in range(1000):
        clock.seconds += 0.001
        forecast.nth_s(0, streams)
    assert len(asked) <= 11
