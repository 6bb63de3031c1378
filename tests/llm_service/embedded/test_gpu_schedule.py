"""Scheduling by the listener, on virtual time: first tokens first, who gives way, and that nobody starves."""

from __future__ import annotations

import numpy as np
import pytest

from llm_service.embedded.schedule import (
    SchedulePolicy,
    Slots,
    StreamPaces,
    choose_rows,
    nearly_due,
    prompt_tokens,
    rank,
)

POLICY = SchedulePolicy(first_tokens=10, max_lead_s=2.0, free_rows=2, piece_tokens=100, burst_piece_tokens=400)


def paces(*launched: int, first_token_s: float = 0.0) -> StreamPaces:
    streams = StreamPaces.for_slots(len(launched))
    streams.launched[:], streams.first_token_s[:] = launched, first_token_s
    return streams


def paced(*launched: int, head_start: int = 10, tokens_per_s: float = 100.0) -> StreamPaces:
    """Streams whose first token came at 0."""
    streams = StreamPaces.for_slots(len(launched))
    for slot, count in enumerate(launched):
        streams.begin(slot, head_start, tokens_per_s)
        streams.launched[slot], streams.first_token_s[slot] = count, 0.0
    return streams


def near(streams: StreamPaces, now_s: float) -> tuple[list[int], float]:
    rows, soonest_s = nearly_due(np.arange(len(streams.launched), dtype=np.int32), streams, now_s, POLICY)
    return rows.tolist(), soonest_s


def slots(*values: int) -> Slots:
    return np.array(values, np.int32)


def chosen(streams: StreamPaces, now_s: float, prompts_wait: bool = False, max_rows: int = 8) -> list[int]:
    ready = np.arange(len(streams.launched), dtype=np.int32)
    rows: list[int] = choose_rows(ready, streams, prompts_wait, now_s, max_rows, POLICY).tolist()
    return rows


def test_priority_then_arrival_decides_who_begins() -> None:
    waiting = [(10, 0.0), (3, 1.0), (3, 0.5)]
    assert min(waiting, key=lambda asked: rank(*asked, 2.0, POLICY)) == (3, 0.5)


def test_the_least_priority_does_not_starve() -> None:
    """However many of the first priority keep coming, the wait of another lifts it above them."""
    assert rank(10, 0.0, 44.9, POLICY) > rank(1, 44.0, 44.9, POLICY)
    assert rank(10, 0.0, 50.1, POLICY) < rank(1, 50.0, 50.1, POLICY)


def test_a_stream_far_ahead_gives_way_to_prompts_and_to_young_streams() -> None:
    grown = paces(500, 40, 30, 400)
    assert chosen(grown, now_s=0.0, prompts_wait=True) == [1, 2]
    assert chosen(paces(500, 40, 3, 400), now_s=0.0) == [1, 2]


def test_nobody_gives_way_in_a_short_step() -> None:
    assert chosen(paces(500, 3), now_s=0.0) == [0, 1]


def test_young_streams_come_first_then_those_with_the_least_lead() -> None:
    streams = paces(100, 45, 5, 48, 1)
    assert chosen(streams, now_s=0.0, max_rows=3) == [1, 2, 4]
    assert chosen(streams, now_s=0.0, max_rows=4) == [1, 2, 3, 4]


def test_the_lead_melts_while_the_listener_hears() -> None:
    streams = paces(100, 100, 100)
    streams.first_token_s[:] = [0.0, 1.0, 2.0]
    assert streams.leads_s(slots(0, 1, 2), 3.0).tolist() == pytest.approx([1.0, 2.0, 3.0])
    streams.first_token_s[0] = np.inf
    assert streams.leads_s(slots(0), 3.0).tolist() == [4.0]


def test_prompts_run_in_small_pieces_only_beside_streams_past_their_first_tokens() -> None:
    assert prompt_tokens(slots(0, 1), paces(3, 9), POLICY) == 400
    assert prompt_tokens(slots(0, 1), paces(3, 10), POLICY) == 100
    assert prompt_tokens(np.arange(250, dtype=np.int32), paces(*[20] * 250), POLICY) == 250


def test_no_listener_lacks_a_token_when_there_are_more_streams_than_rows() -> None:
    """40 streams, 8 rows a step, 4 ms a step: each needs 25 tokens a second, and 8 rows give 50."""
    count, step_s = 40, 0.004
    streams = paces(*[1] * count, first_token_s=0.0)
    ready = np.arange(count, dtype=np.int32)
    now_s, late = 0.0, 0
    for _ in range(2500):
        rows = choose_rows(ready, streams, False, now_s, 8, POLICY)
        assert 0 < len(rows) <= 8
        streams.launched[rows] += 1
        now_s += step_s
        late += int((streams.leads_s(ready, now_s) < -0.2).sum())
    assert late == 0
    assert streams.launched.min() >= int(now_s * 25) - 5


def test_a_stream_that_gave_way_comes_back_while_others_keep_coming() -> None:
    """New streams arrive for ever; the one that was far ahead still gets its tokens in time."""
    streams = paces(400, *[0] * 7)
    ready = np.arange(8, dtype=np.int32)
    now_s = 0.0
    for _ in range(4000):
        rows = choose_rows(ready, streams, True, now_s, 8, POLICY)
        streams.launched[rows] += 1
        others = rows[rows > 0]
        over = others[streams.launched[others] >= 60]
        streams.launched[over], streams.first_token_s[over] = 0, now_s
        now_s += 0.01
        assert streams.leads_s(slots(0), now_s)[0] > -0.1


def test_a_paced_stream_is_due_until_its_head_start_then_at_its_pace() -> None:
    assert near(paced(9), 0.0) == ([0], 0.0)
    rows, soonest_s = near(paced(10), 0.0)
    assert rows == [] and soonest_s == pytest.approx(0.01)
    assert near(paced(10), 0.0101) == ([0], 0.0)
    assert near(paced(30), 0.205)[1] == pytest.approx(0.005)


def test_who_is_nearly_due_takes_part_in_a_step_that_runs_anyway() -> None:
    """Of three, the second is due, the first has 7 tokens more than it needs, the third 9."""
    assert near(paced(18, 10, 20), 0.011) == ([0, 1], 0.0)
    assert near(paced(18, 11, 20), 0.011)[0] == []


def test_a_stream_is_not_due_before_its_first_token_was_read() -> None:
    streams = paced(1, head_start=1)
    streams.first_token_s[:] = np.inf
    assert near(streams, 5.0) == ([], np.inf)
