"""The deadline policy against a listener in virtual time, and the measurements it goes by."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gateway.chunking.chunker import Chunker
from gateway.chunking.outlook import MARGIN_S, Outlook
from gateway.chunking.pace import (
    CAUTION,
    HELD_BACK_S,
    PRIOR_COST,
    PRIOR_TOKEN_RATE_HZ,
    ChunkCost,
    Pace,
    PaceBook,
    PaceMeter,
)
from gateway.chunking.policies import (
    ChunkPolicy,
    ChunkProgress,
    ChunkSettings,
    DeadlineChunks,
    ExponentialChunks,
    FixedChunks,
    awaited_tokens,
)
from gateway.config import parse_args
from gateway.errors import ConfigError
from gateway.speech.speaker import PipelineSettings
from tests.gateway.chunking.virtual_time import CostOf, World, learnt, linear, listen
from tests.virtual_time import ManualClock
from token2wav_service.serving.settings import SETTINGS

FIXED_SCHEDULES: list[ChunkPolicy] = [
    *(ExponentialChunks(15, bound) for bound in (15, 25, 40, 100)),
    *(FixedChunks(hop, 15) for hop in (8, 11, 15, 20, 30)),
]
ROOM, ROOM_S = 1.1, 0.02
"""A schedule counts as possible if it still works with costs so much higher: no policy knows them to the last digit."""
FAST = World(100, linear(0.03, 0.001))


def worlds() -> st.SearchStrategy[tuple[float, float, float, int]]:
    rates = st.floats(26, 400) | st.floats(26, 60)
    return st.tuples(rates, st.floats(0.002, 0.4), st.floats(0.0001, 0.02), st.sampled_from([1, 2, 5, 10]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(worlds())
def test_where_some_schedule_never_runs_dry_this_one_does_not_and_starts_no_later(
    speeds: tuple[float, float, float, int],
) -> None:
    rate, fixed_s, per_token_s, burst = speeds
    harder = World(rate, linear(ROOM * fixed_s + ROOM_S, ROOM * per_token_s), 300, burst)
    assume(any(not listen(harder, policy).gaps for policy in FIXED_SCHEDULES))
    world = World(rate, linear(fixed_s, per_token_s), 300, burst)
    heard = listen(world, DeadlineChunks(), learnt(world, DeadlineChunks()))
    assert heard.gaps == []
    assert heard.ttfa_s <= listen(world, ExponentialChunks(15)).ttfa_s
    assert heard.audio_s == pytest.approx(300 / 25)


@pytest.mark.parametrize("rate", [30, 60, 200])
def test_with_quick_services_the_first_audio_is_a_quarter_earlier_than_exponential(rate: float) -> None:
    world = World(rate, linear(0.03, 0.001))
    first = listen(world, DeadlineChunks(), learnt(world, DeadlineChunks())).ttfa_s
    assert first < 0.75 * listen(world, ExponentialChunks(15)).ttfa_s


COSTS = st.builds(ChunkCost, st.floats(0, 2), st.floats(0, 0.1))
PACES = st.builds(
    Pace,
    st.floats(0.1, 1000),
    st.integers(1, 50),
    COSTS,
    st.floats(0, 3),
    st.floats(-3, 30),
    st.just(1),
    st.none() | COSTS,
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 500),
    st.integers(4, 200),
    PACES,
)
def test_hops_are_bounded_whatever_was_measured(sent: int, pending: int, last_hop: int, pace: Pace) -> None:
    if not sent:
        last_hop, pace = 0, pace._replace(dry_in_s=float("inf"))
    hop = DeadlineChunks(max_hop_tokens=60).next_hop(ChunkProgress(sent, 0, pending, 0.0, last_hop, None, pace))
    assert 4 <= hop <= 60
    is_urgent = not sent and pace.urgent_cost is not None
    assert hop <= 25 or not pace.is_beside or pace.cost.of_hop(25) <= 0.1 or is_urgent
    assert sent or 5 <= hop <= (15 if pace.urgent_cost is None else 50)


def test_the_bound_is_reached_and_kept() -> None:
    hops = listen(FAST, DeadlineChunks(max_hop_tokens=40), learnt(FAST, DeadlineChunks())).hops
    assert max(hops) == 40 == hops[-2]


@pytest.mark.parametrize(
    ("is_beside", "fixed_s", "expected"), [(True, 0.09, 25), (True, 0.01, 100), (False, 0.09, 100)]
)
def test_no_hop_is_longer_than_a_second_where_token2wav_is_busy_with_others(
    is_beside: bool, fixed_s: float, expected: int
) -> None:
    at_ease = Pace(100.0, cost=ChunkCost(fixed_s, 0.001), dry_in_s=8.0, is_beside=is_beside)
    assert DeadlineChunks().next_hop(ChunkProgress(3, 100, 120, 1.0, 50, pace=at_ease)) == expected


def test_dearer_chunks_make_the_first_hop_longer() -> None:
    costs = [linear(fixed_s, 0.001) for fixed_s in (0.01, 0.1, 0.2)]
    firsts = [listen(w, DeadlineChunks(), learnt(w, DeadlineChunks())).hops[0] for w in (World(100, c) for c in costs)]
    assert firsts == sorted(set(firsts))


@pytest.mark.parametrize(
    ("rate", "urgent_cost", "expected"),
    [
        (150, None, 15),
        (150, ChunkCost(0.05, 0.004), 15),
        (150, ChunkCost(0.4, 0.012), 25),
        (150, ChunkCost(0.8, 0.02), 50),
        (26, ChunkCost(0.4, 0.012), 15),
    ],
    ids=["not known", "urgent chunks are quick", "they are slow", "they are slower", "the LLM is slow"],
)
def test_the_first_hop_is_longer_than_usual_only_where_even_urgent_chunks_are_slow(
    rate: float, urgent_cost: ChunkCost | None, expected: int
) -> None:
    pace = Pace(rate, cost=ChunkCost(0.5, 0.01), urgent_cost=urgent_cost)
    assert DeadlineChunks().next_hop(ChunkProgress(0, 0, 0, 0.0, pace=pace)) == expected
    assert DeadlineChunks(max_hop_tokens=20).next_hop(ChunkProgress(0, 0, 0, 0.0, pace=pace)) <= 20
    with_30 = DeadlineChunks(hop_tokens=30).next_hop(ChunkProgress(0, 0, 0, 0.0, pace=pace))
    assert with_30 == (50 if expected == 50 else 30)


def test_chunks_of_listeners_who_had_nothing_left_are_urgent_until_some_seconds_later() -> None:
    clock, book = ManualClock(), PaceBook()
    book.requests = 2
    meter = PaceMeter(book, clock)
    for clock.seconds, seconds in ((0.0, 0.2), (0.25, 0.1)):
        meter.sent(18)
        clock.seconds += seconds
        meter.answered(0.44)
    newcomer = PaceMeter(book, clock)
    urgent_cost = newcomer.read().urgent_cost
    assert urgent_cost is not None and urgent_cost.of_hop(15) == pytest.approx(0.2), "the second came in time"
    book.requests = 1
    assert newcomer.read().urgent_cost is None, "nobody else is there"
    book.requests = 2
    clock.seconds += 6.0
    assert newcomer.read().urgent_cost is None


def test_a_chunk_that_may_have_waited_for_its_voice_tells_nothing_of_others() -> None:
    clock, book = ManualClock(), PaceBook()
    meter = PaceMeter(book, clock)
    meter.waits_for_voice = True
    meter.sent(18)
    clock.seconds += 5.0
    meter.answered(0.44)
    assert meter.read().cost == PRIOR_COST and PaceMeter(book, clock).read().urgent_cost is None
    assert meter.read().dry_in_s == pytest.approx(0.44)
    meter.sent(18)
    clock.seconds += 0.1
    meter.answered(0.6)
    assert book.line.of_hop(15) == pytest.approx(0.1)


@pytest.mark.parametrize("fixed_s", [0.0, 0.02, 0.2])
def test_urgent_chunks_of_one_length_are_taken_to_grow_as_all_do(fixed_s: float) -> None:
    book = PaceBook()
    book.requests = 2
    cost = ChunkCost(fixed_s, 0.002)
    for hop in (15, 25, 50, 100) * 10:
        book.record_cost(hop, cost.of_hop(hop), 0.0)
    book.record_urgent(15, 2 * cost.of_hop(15), 0.0, 1)
    urgent = book.urgent_line(0.0)
    assert urgent is not None and urgent.of_hop(100) == pytest.approx(2 * cost.of_hop(100), rel=0.05)


def test_a_crowd_is_expected_to_cost_what_the_last_one_as_large_did() -> None:
    clock, book = ManualClock(), PaceBook()

    def crowd(size: int, seconds: float) -> list[PaceMeter]:
        meters = [PaceMeter(book, clock) for _ in range(size)]
        for meter in meters:
            meter.opened()
        for meter in meters:
            meter.sent(18)
        clock.seconds += seconds
        for meter in meters:
            meter.answered(0.44)
        clock.seconds += 60.0
        return meters

    def expected_s(soundless: int) -> float | None:
        meters = [PaceMeter(book, clock) for _ in range(soundless)]
        for meter in meters:
            meter.opened()
        cost = meters[0].read().urgent_cost
        for meter in meters:
            meter.ended()
        return None if cost is None else cost.of_hop(15)

    crowd(5, 0.8)
    assert expected_s(1) is None and expected_s(3) is None
    assert expected_s(6) == pytest.approx(0.8)
    assert expected_s(40) == pytest.approx(0.8), "more than of the largest that was seen is not known"
    crowd(2, 0.3)
    assert (expected_s(3), expected_s(6)) == (pytest.approx(0.3), pytest.approx(0.8))
    for _ in range(10):
        crowd(5, 0.1)
    assert expected_s(6) == pytest.approx(0.1, abs=0.05)
    assert book.soundless == 0


def test_a_crowd_that_came_beside_much_load_is_not_expected_to_cost_as_much_without_it() -> None:
    book = PaceBook()
    book.soundless = 2
    for _ in range(50):
        book.record_cost(15, 0.3, 0.0)
        book.record_urgent(15, 0.3, 0.0, 2)
    urgent = book.urgent_line(60.0)
    assert urgent is not None and urgent.of_hop(15) == pytest.approx(0.3)
    for second in range(60):
        book.record_cost(15, 0.02, float(second))
    urgent = book.urgent_line(60.0)
    assert urgent is not None and urgent.of_hop(15) == pytest.approx(3 * 0.02, rel=0.01)


def test_a_first_hop_that_seems_short_enough_is_longer_in_a_crowd() -> None:
    alone = Pace(150, cost=ChunkCost(0.05, 0.002))
    hop = DeadlineChunks().next_hop(ChunkProgress(0, 0, 0, 0.0, pace=alone))
    in_crowd = alone._replace(urgent_cost=ChunkCost(0.4, 0.012))
    assert hop < 15 < DeadlineChunks().next_hop(ChunkProgress(0, 0, 0, 0.0, pace=in_crowd))


def rising(at_s: float, factor: float) -> CostOf:
    return lambda tokens, now_s: (0.05 + 0.002 * tokens) * (factor if now_s >= at_s else 1)


@pytest.mark.parametrize("at_s", [0.3, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("rate", [35, 100])
def test_when_costs_rise_in_mid_stream_it_recovers(rate: float, at_s: float) -> None:
    world = World(rate, rising(at_s, 4.0), 600)
    before = World(rate, rising(at_s, 1.0), 600)
    heard = listen(world, DeadlineChunks(), learnt(before, DeadlineChunks()))
    assert len(heard.gaps) <= 2, "after a gap it goes by the new costs"
    assert all(seconds < at_s + 3 for seconds, _ in heard.gaps)


def test_one_stall_does_not_keep_hops_short() -> None:
    def stalling(tokens: int, now_s: float) -> float:
        return 0.03 + 0.001 * tokens + (1.0 if 1.0 <= now_s < 1.2 else 0.0)

    world = World(100, stalling, 900)
    hops = listen(world, DeadlineChunks(), learnt(FAST, DeadlineChunks())).hops
    assert hops[-2] == 100


def test_uneven_costs_cause_less_silence_than_exponential() -> None:
    def total_gap_s(policy: ChunkPolicy) -> float:
        dice, book = Random(1), PaceBook()
        world = World(60, lambda tokens, _: (0.06 + 0.003 * tokens) * dice.choice((0.7, 1, 1, 1.5)), 300)
        return sum(listen(world, policy, book).gap_s for _ in range(20))

    assert total_gap_s(DeadlineChunks()) < total_gap_s(ExponentialChunks())


def test_a_tighter_slack_makes_a_shorter_hop() -> None:
    def hop(dry_in_s: float) -> int:
        pace = Pace(50, cost=ChunkCost(0.02, 0.001), dry_in_s=dry_in_s)
        return DeadlineChunks().next_hop(ChunkProgress(3, 60, 10, 1.0, 50, None, pace))

    assert hop(0.0) == 4
    assert hop(0.5) < hop(1.0) < hop(3.0) == 100


@pytest.mark.parametrize(
    ("cost", "pending", "free_in_s", "expected"),
    [
        (ChunkCost(0.5, 0.03), 28, 0.0, 25),
        (ChunkCost(0.5, 0.03), 20, 0.0, 15),
        (ChunkCost(0.5, 0.03), 20, 1.0, 25),
        (ChunkCost(0.5, 0.03), 20, 0.1, 15),
        (ChunkCost(0.1, 0.01), 28, 1.0, 5),
    ],
    ids=["tokens are here", "they are not", "they come in time", "they come too late", "not overloaded"],
)
def test_an_overloaded_token2wav_gets_late_hops_as_long_as_tokens_are_there(
    cost: ChunkCost, pending: int, free_in_s: float, expected: int
) -> None:
    pace = Pace(50, cost=cost, free_in_s=free_in_s, dry_in_s=0.0)
    assert DeadlineChunks().next_hop(ChunkProgress(1, 15, pending, 1.0, 15, None, pace)) == expected


def test_listeners_of_an_overloaded_token2wav_wait_less_with_its_longer_hops() -> None:
    world = World(60, linear(0.6, 0.03), 300)
    assert listen(world, DeadlineChunks(), learnt(world, DeadlineChunks())).gap_s < listen(world, FixedChunks(15)).gap_s


def test_an_llm_far_ahead_gives_full_windows_at_once() -> None:
    chunker = Chunker(DeadlineChunks(20))
    chunker.add(list(range(400)))
    pace = Pace(dry_in_s=20.0)
    sizes = [len(w.token_ids) for _ in range(4) if (w := chunker.next_chunk(1.0, pace))]
    assert sizes == [23, 53, 103, 103], "growing by the sizes that token2wav batches"


@pytest.mark.parametrize(("dry_in_s", "tokens"), [(0.6, 28), (0.9, 53)])
def test_a_hop_of_four_times_the_last_one_could_take_twice_as_long_as_expected(dry_in_s: float, tokens: int) -> None:
    chunker = Chunker(DeadlineChunks(20))
    chunker.add(list(range(400)))
    assert chunker.next_chunk() is not None
    chunk = chunker.next_chunk(pace=Pace(cost=ChunkCost(0.25, 0.003), dry_in_s=dry_in_s))
    assert chunk is not None and len(chunk.token_ids) == tokens


def test_a_hop_is_chosen_anew_while_tokens_come() -> None:
    chunker = Chunker(DeadlineChunks(10))
    chunker.add(list(range(13 + 12)))
    assert chunker.next_chunk() is not None
    assert chunker.next_chunk(pace=Pace(50, dry_in_s=9.0)) is None, "there is time for 20"
    chunk = chunker.next_chunk(pace=Pace(50, dry_in_s=0.0))
    assert chunk is not None
    assert len(chunk.token_ids) < 15 + 3


def test_settings_make_the_policy() -> None:
    assert ChunkSettings("deadline").policy() == DeadlineChunks(None, 15, 100)
    assert ChunkSettings("deadline", 30, 8, 50).policy() == DeadlineChunks(8, 30, 50)
    assert ChunkSettings("exponential").policy() == ExponentialChunks(15, 100)


def test_every_door_has_the_default_that_the_figures_were_taken_with() -> None:
    drop_in = next(setting for setting in SETTINGS if setting.name == "dynamic_chunk_strategy")
    command_line = parse_args(["--tokenizer-dir", ".", "--voices-dir", "."])
    assert ChunkSettings().policy() == PipelineSettings().chunk_policy == command_line.chunks.policy()
    assert ChunkSettings().policy() == DeadlineChunks()
    assert drop_in.default == ChunkSettings().dynamic_chunk_strategy


def test_the_deadline_policy_needs_a_bound() -> None:
    with pytest.raises(ConfigError, match="token_hop_len_max"):
        ChunkSettings("deadline", token_hop_len_max=None)


def test_the_book_finds_fixed_and_per_token_costs() -> None:
    book = PaceBook()
    assert book.line == PRIOR_COST
    for hop in [15, 25, 50, 100] * 10:
        book.record_cost(hop, 0.02 + 0.001 * (hop + 3), 0.0)
    assert book.line.fixed_s == pytest.approx(0.02, rel=0.05)
    assert book.line.per_token_s == pytest.approx(0.001, rel=0.05)


def test_one_outlier_hardly_moves_the_book() -> None:
    book = PaceBook()
    for hop in [15, 25, 50, 100] * 10:
        book.record_cost(hop, 0.05, 0.0)
    book.record_cost(15, 100.0, 0.0)
    assert book.line.of_hop(15) < 0.07


@pytest.mark.parametrize(("quick_s", "slow_s", "pause_s"), [(0.015, 0.3, 4.0), (0.3, 1.2, 20.0)], ids=["GPU", "CPU"])
def test_a_few_chunks_tell_that_a_crowd_has_gone(quick_s: float, slow_s: float, pause_s: float) -> None:
    def first_hop() -> int:
        meter = PaceMeter(book, clock)
        return DeadlineChunks().next_hop(ChunkProgress(0, 0, 0, 0.0, pace=meter.read()))

    def chunks(number: int, seconds: float) -> None:
        for _ in range(number):
            clock.seconds += seconds
            book.record_cost(15, seconds, clock.seconds)

    clock, book = ManualClock(), PaceBook()
    book.record_token_rate(250, 0.0)
    chunks(100, quick_s)
    alone, line = first_hop(), book.line
    chunks(100, slow_s)
    assert first_hop() > alone
    for _ in range(4):
        clock.seconds += pause_s
        chunks(7, quick_s)
    assert first_hop() == alone
    assert book.line.of_hop(15) < 1.2 * line.of_hop(15)


def test_of_a_crowd_that_has_gone_nothing_is_left_for_a_single_request() -> None:
    book = PaceBook()
    book.record_cost(15, 0.1, 0.0)
    book.record_token_rate(200, 0.0)
    alone, book.requests = book.line, 12
    assert (book.line, book.token_rate_hz) == (alone, 200), "all that is known of a crowd yet"
    for second in range(1, 5):
        book.record_cost(15, 1.2, float(second))
        book.record_token_rate(20, float(second))
    assert book.line.of_hop(15) > 0.3 and book.spread > 0 and book.token_rate_hz < 100
    book.requests = 1
    assert (book.line, book.spread, book.token_rate_hz) == (alone, 0.0, 200)
    book.requests = 3
    assert book.line.of_hop(15) > 0.3, "and of one that comes again, what the last one told"


def with_first_chunk(requests: int) -> tuple[ManualClock, PaceMeter]:
    """Return a stream, one of so many, whose first chunk has taken half a second and whose second is under way."""
    clock, book = ManualClock(), PaceBook()
    book.requests = requests
    meter = PaceMeter(book, clock)
    meter.sent(18)
    clock.seconds = 0.5
    meter.sent(18)
    meter.answered(0.44)
    return clock, meter


def test_a_listener_begins_when_the_audio_lasts_until_the_chunk_under_way_is_there() -> None:
    clock, meter = with_first_chunk(requests=2)
    assert not meter.begins(0.44, tokens_come=False), "the next one takes half a second, as this one did"
    clock.seconds = 0.9
    assert meter.begins(0.44, tokens_come=False)
    assert meter.read().dry_in_s == pytest.approx(0.44 + 0.6, abs=0.2), "it plays from now on"
    clock.seconds = 1.0
    meter.answered(0.6)
    assert not meter.begins(0.1, tokens_come=True), "the LLM goes on"
    assert meter.begins(0.1, tokens_come=False), "there is nothing to wait for"


def test_a_listener_alone_never_waits_for_a_second_chunk() -> None:
    _, meter = with_first_chunk(requests=1)
    assert meter.begins(0.1, tokens_come=True)


def test_the_meter_knows_the_listeners_slack() -> None:
    clock = ManualClock()
    meter = PaceMeter(PaceBook(), clock)
    meter.sent(18)
    clock.seconds = 0.1
    meter.answered(15 / 25 - HELD_BACK_S)
    clock.seconds = 0.3
    assert meter.read().dry_in_s == pytest.approx(0.44 - 0.2)
    assert meter.read().free_in_s == 0
    meter.sent(28)
    assert meter.read().dry_in_s == pytest.approx(0.24 + 1.0), "audio under way counts"
    assert meter.read().free_in_s == pytest.approx(meter.read().cost.of_hop(25))


def test_time_spent_in_the_queue_behind_ones_own_window_is_no_cost() -> None:
    clock, book = ManualClock(), PaceBook()
    meter = PaceMeter(book, clock)
    meter.sent(18)
    meter.sent(18)
    for clock.seconds in (0.1, 0.2):
        meter.answered(0.6)
    assert book.line.of_hop(15) == pytest.approx(0.1)


def test_the_meter_knows_the_llms_rate_and_tells_the_next_stream() -> None:
    clock, book = ManualClock(), PaceBook()
    assert PaceMeter(book, clock).read().token_rate_hz == PRIOR_TOKEN_RATE_HZ
    meter = PaceMeter(book, clock)
    for step in range(60):
        clock.seconds = step * 0.04
        meter.received([4, 4])
    assert meter.read().token_rate_hz == pytest.approx(200, rel=0.1)
    assert meter.read().burst_tokens == 8, "the next message may be twice as large"
    assert PaceMeter(book, clock).read().token_rate_hz == pytest.approx(200)


def test_a_head_start_is_spoken_as_soon_as_it_is_here() -> None:
    """A policy that then wanted more would have the listener wait for the LLM's next message."""
    chunker, crowded = Chunker(DeadlineChunks(), first_tokens=9), Pace(token_rate_hz=200, cost=ChunkCost(0.2, 0.002))
    chunker.add(list(range(8)))
    assert chunker.missing == 1 and chunker.next_chunk(pace=crowded) is None
    chunker.add([8])
    assert awaited_tokens(DeadlineChunks(), crowded) > 9
    first = chunker.next_chunk(pace=crowded)
    assert first is not None and first.token_ids == tuple(range(9))
    assert chunker.missing == 1 and chunker.next_chunk(pace=crowded) is None


def test_a_token_rate_counts_less_the_longer_ago_it_was_learnt() -> None:
    book = PaceBook()
    book.record_token_rate(200, 1.0)
    assert book.token_rate_hz == 200, "the first replaces the prior"
    book.record_token_rate(100, 1.0)
    assert book.token_rate_hz == pytest.approx(180)
    book.record_token_rate(100, 60.0)
    assert book.token_rate_hz == pytest.approx(100)


def test_tokens_that_are_there_are_not_waited_for() -> None:
    outlook = Outlook.measured(PaceMeter(PaceBook(), ManualClock()).read(), tokens_pending=40)
    assert outlook.ready_in_s(15) == 0.0
    assert outlook.ready_in_s(60) > 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), PACES)
def test_the_longest_hop_in_time_is_the_last_whose_audio_comes_before_the_listener_runs_dry(
    pending: int, pace: Pace
) -> None:
    outlook = Outlook.measured(pace, pending)

    def is_in_time(hop: int) -> bool:
        audio_s = max(outlook.ready_in_s(hop), pace.free_in_s) + pace.cost.of_hop(hop)
        return pace.free_in_s + CAUTION * (audio_s - pace.free_in_s) + MARGIN_S <= pace.dry_in_s

    hops = range(4, 101)
    assert outlook.longest_in_time(hops) == max(filter(is_in_time, hops), default=None)


def test_a_stalled_llm_is_seen_before_its_next_token() -> None:
    clock = ManualClock()
    meter = PaceMeter(PaceBook(), clock)
    for step in range(50):
        clock.seconds = step * 0.01
        meter.received([1])
    lively = meter.read().token_rate_hz
    clock.seconds += 2.0
    assert meter.read().token_rate_hz < lively / 3


def test_a_block_masked_flow_s_first_hop_is_the_usual_one_whatever_the_pace() -> None:
    pace = Pace(200.0, 1, ChunkCost(0.01, 0.0001))
    assert DeadlineChunks().next_hop(ChunkProgress(0, 0, 0, 0.0, pace=pace)) < 15
    blocks = pace._replace(hop_multiple=25)
    assert DeadlineChunks().next_hop(ChunkProgress(0, 0, 0, 0.0, pace=blocks)) == 15
    assert DeadlineChunks(first_hop_tokens=9).next_hop(ChunkProgress(0, 0, 0, 0.0, pace=blocks)) == 9


def test_the_pace_knows_the_hops_of_the_stream_that_was_opened_last() -> None:
    book = PaceBook()
    book.hop_multiple = 25
    assert PaceMeter(book, ManualClock()).read().hop_multiple == 25
