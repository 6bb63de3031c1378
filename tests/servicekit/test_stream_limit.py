"""How a service's limit of streams follows how much time to spare it serves them with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from servicekit.stream_limit import COLD_STREAMS, LEAST_STREAMS, StreamLimit
from tests.virtual_time import ManualClock

ROOM_S = 0.6
"""Room of every piece: the audio before it."""


class Host:
    """A service that serves so many streams in time; a second of each stream's speech is a piece of work."""

    def __init__(self, most: int = 1000) -> None:
        self.clock = ManualClock()
        self.limit = StreamLimit(most, self.clock)
        self.slack_s = ROOM_S
        """How far ahead of its listeners the service is; it falls while there are too many of them."""
        self.streams, self.ending = 0, 0.0

    def serve(self, wanted: int, capacity: float, seconds: float) -> list[int]:
        """Have so many callers want streams all the time; returns the open streams of each tenth of a second."""
        opened = []
        for _ in range(round(seconds * 10)):
            self.clock.seconds += 0.1
            self.ending += self.streams / 80  # a stream lasts 8 s
            ended, self.ending = divmod(self.ending, 1.0)
            streams = self.streams = max(min(wanted, self.limit.streams), self.streams - int(ended))
            self.slack_s = max(-1.0, min(ROOM_S, self.slack_s + 0.1 * (capacity - streams) / capacity))
            pieces, made_s = (
                max(1, streams // 10),
                0.1 * (min(3 * streams, capacity) if self.slack_s == ROOM_S else capacity),
            )
            for _ in range(pieces):
                self.limit.note_piece(self.slack_s, ROOM_S, made_s / pieces, streams)
            opened.append(streams)
        return opened


def test_a_cold_service_admits_32_at_once_and_not_1000() -> None:
    assert 32 <= StreamLimit(1000, ManualClock()).streams == COLD_STREAMS <= 100


@pytest.mark.parametrize("capacity", [30, 700])
def test_the_limit_comes_to_what_is_served_in_time_and_nobody_runs_dry(capacity: int) -> None:
    host = Host()
    host.serve(1000, capacity, 60.0)
    served = [(host.serve(1000, capacity, 0.1)[0], host.slack_s) for _ in range(600)]
    assert 0.9 * capacity <= sum(streams for streams, _ in served) / len(served) <= capacity
    assert min(slack_s for _, slack_s in served) > 0.0


def test_a_ramp_of_80_requests_a_second_is_never_refused_by_a_service_that_has_room() -> None:
    host, open_streams = Host(), 0.0
    while open_streams < 640:
        open_streams = min(640.0, open_streams + 8.0)
        assert open_streams <= host.limit.streams + 2 * 80, "they would wait for longer than admission allows"
        host.serve(int(open_streams), 1000.0, 0.1)


def test_a_service_that_was_slow_for_a_while_is_used_again() -> None:
    host = Host()
    host.serve(500, 1000.0, 20.0)
    host.serve(500, 20.0, 20.0)
    assert host.limit.streams < 100
    host.serve(500, 1000.0, 60.0)
    assert host.limit.streams >= 450


def test_the_limit_keeps_its_bounds_and_what_came_too_late_from_the_llm_says_nothing() -> None:
    clock = ManualClock()
    limit = StreamLimit(10, clock)
    for slack_s, room_s, expected in ((-1.0, 0.0, 10), (0.5, 0.6, 10), (-1.0, 0.6, LEAST_STREAMS)):
        for _ in range(400):
            clock.seconds += 0.1
            limit.note_piece(slack_s, room_s, 0.1, LEAST_STREAMS)
        assert limit.streams == expected


def test_the_next_end_is_sooner_the_more_streams_there_are_and_later_the_more_are_too_many() -> None:
    limit = StreamLimit(100, ManualClock())
    for _ in range(100):
        limit.note_end(8.0)
    assert limit.next_end_s(64) == pytest.approx(8.0 / 64, rel=0.01)
    assert limit.next_end_s(80) == pytest.approx(17 * 8.0 / 80, rel=0.01)


def test_streams_that_begin_at_once_on_a_service_with_room_take_none_of_it() -> None:
    """Some of their first pieces are tight; a limit that fell to what was asked for by then made callers wait."""
    host = Host()
    host.serve(600, 700, 60.0)
    room = host.limit.streams
    for slack_s in (*[ROOM_S] * 50, *[0.1] * 10, *[ROOM_S] * 90):
        host.clock.seconds += 0.01
        host.limit.note_piece(slack_s, ROOM_S, 2.0, room // 3)
    assert host.limit.streams >= 0.95 * room


def test_a_service_that_is_ahead_of_its_listeners_is_not_taken_to_serve_as_many_more_as_it_makes_seconds() -> None:
    """It makes a lot for streams that end early, and what they cost comes later: at 400 open ones it had 700 made."""
    limit = _judged_after([(ROOM_S, 700.0, 400)] * 4)
    assert 300 <= limit.streams <= 500


def test_a_limit_far_above_the_open_streams_falls_below_them_when_all_are_late() -> None:
    before, after = [(ROOM_S, 9000.0, 2000)] * 20, [(-0.1, 570.0, 420)]
    assert _judged_after(before).streams > 600
    assert _judged_after(before + after).streams < 420


@pytest.mark.parametrize(("mean_slack_s", "least", "most"), [(0.6, 310, 330), (1.2, 480, 560)])
def test_a_limit_above_the_first_ones_follows_how_many_pieces_take_over_half_of_their_room(
    mean_slack_s: float, least: int, most: int
) -> None:
    """All do where the mean slack is 0.6 s; two in five do at 1.2 s, as where a few more streams can be served."""
    limit = _judged_after([(ROOM_S, 500.0, 300)] * 4 + [(mean_slack_s, 600.0, None)] * 6)
    assert least <= limit.streams <= most


def test_a_limit_reached_by_streams_one_by_one_lets_no_more_begin_at_once_than_the_first_one() -> None:
    limit = _judged_after([(ROOM_S, 500.0, 300)] * 4 + [(1.2, 600.0, None)] * 6 + [(3.0, 600.0, 10)])
    assert limit.streams == 384


def _judged_after(windows: Sequence[tuple[float, float, int | None]]) -> StreamLimit:
    """Return a limit after half-second windows of slack in seconds, seconds made in a second, and open streams.

    With None as many streams are open as may be, and two in five pieces take over half of their room of 2 s.
    """
    clock = ManualClock()
    limit = StreamLimit(1000, clock)
    for slack_s, made_s_per_s, open_streams in windows:
        for piece in range(20):
            clock.seconds += 0.0251
            made_s = made_s_per_s * 0.0251
            if open_streams is None:
                limit.note_piece(slack_s * (0.5 if piece % 5 < 2 else 4 / 3), 2.0, made_s, limit.streams)
            else:
                limit.note_piece(slack_s, ROOM_S, made_s, open_streams)
    return limit
