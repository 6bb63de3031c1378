"""Points of capacity: what counts is what was asked while all listeners were there, and a queue is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.lib.points import CapacityPoint, GPUs
from cosydit.bench.types import AudioArrival, BenchmarkError, RequestRecord
from lab.simulate.crowd import CrowdPlan, LoadStep
from lab.simulate.curves import median_point, simulated_point, simulated_points
from lab.simulate.fleet import FleetRun
from lab.tests.simulate.costs import COSTS

CROWD = CrowdPlan((LoadStep(0.0, 2),), seconds=30.0)


def heard(sent_s: float, first_s: float, audio_s: float = 9.8, gap_s: float = 0.0) -> RequestRecord:
    """An utterance in two pieces, the second so much too late."""
    half_s = audio_s / 2
    arrivals = [AudioArrival(first_s, half_s), AudioArrival(first_s + half_s + gap_s, half_s)]
    return RequestRecord("", "", sent_s, arrivals=arrivals, total_s=first_s + audio_s + gap_s)


def run_of(*records: RequestRecord, refused: int = 0) -> FleetRun:
    return FleetRun(list(records), refused, 0, 0)


STEADY = tuple(heard(sent_s, 0.2) for sent_s in (0.0, 0.0, 10.0, 10.0, 20.0, 20.0))


def test_what_was_asked_while_listeners_still_came_counts_for_nothing() -> None:
    early = [heard(9.9, first_s=5.0, gap_s=1.0) for _ in range(6)]
    point = simulated_point(CROWD, run_of(*early, *STEADY))
    assert (point.ttfa_p50_ms, point.ttfa_p95_ms, point.underrun_ratio) == pytest.approx((200.0, 200.0, 0.0))


def test_utterances_that_run_dry_later_are_told() -> None:
    assert simulated_point(CROWD, run_of(*STEADY[:-1], heard(20.0, 0.2, gap_s=0.1))).underrun_ratio == 0.25


def test_who_waits_does_not_hear() -> None:
    point = simulated_point(CROWD, run_of(*STEADY))
    assert (point.listeners, point.is_held) == (2, True) and point.hearing_ratio == pytest.approx(0.98)
    waiting = simulated_point(CROWD, run_of(*(heard(record.sent_s, 2.0, audio_s=8.0) for record in STEADY)))
    assert waiting.hearing_ratio == pytest.approx(0.8) and not waiting.is_held


def test_silence_between_pieces_is_not_heard() -> None:
    point = simulated_point(CROWD, run_of(*(heard(record.sent_s, 0.2, 7.8, gap_s=2.0) for record in STEADY)))
    assert point.hearing_ratio == pytest.approx(0.78)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_of(*STEADY, refused=1), id="refused"),
        pytest.param(run_of(*STEADY, replace(STEADY[0], error="gone")), id="failed"),
    ],
)
def test_a_load_at_which_not_all_are_served_is_not_held(run: FleetRun) -> None:
    assert not simulated_point(CROWD, run).is_held


def test_a_load_at_which_nobody_gets_anything_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="got no audio for 2 listeners"):
        simulated_point(CROWD, run_of(refused=9))


def test_each_figure_of_a_point_has_its_own_median_and_all_draws_must_hold_it() -> None:
    drawn = [CapacityPoint(9.0, p50, p95, 0.0, 1.0, is_held) for p50, p95, is_held in ((1, 9, True), (2, 8, False))]
    drawn.append(CapacityPoint(9.0, 7, 1, 0.0, 1.0, True))
    assert median_point(drawn) == CapacityPoint(9.0, 2, 8, 0.0, 1.0, False)


@pytest.mark.slow
def test_loads_end_with_the_first_at_which_requests_pile_up_before_the_llm() -> None:
    """Four requests at once, a token each in 10 ms: enough for 16 listeners."""
    small = replace(COSTS, llm=replace(COSTS.llm, max_requests=4, step_fixed_s=0.01))
    points = simulated_points(small, GPUs(1, 1), (6, 40, 50), seconds=20.0, draws=1)
    assert [(point.listeners, point.is_held, point.underrun_ratio) for point in points] == [
        (6, True, 0),
        (40, False, 0),
    ]


@pytest.mark.slow
def test_points_come_out_of_several_draws_the_same_in_other_processes() -> None:
    jittered = replace(COSTS, llm=replace(COSTS.llm, step_spread=0.2))

    def points(draws: int, processes: int) -> list[CapacityPoint]:
        return simulated_points(jittered, GPUs(1, 1), (4,), seconds=22.0, draws=draws, processes=processes)

    assert points(3, 1) == points(3, 2) != points(1, 1)
