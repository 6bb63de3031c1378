"""A small fleet under a crowd: every request ends once, and losing or replacing servers loses none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from lab.simulate.crowd import CrowdPlan, LoadStep
from lab.simulate.fleet import FleetPlan, FleetRun, FleetSample, simulate_fleet
from lab.simulate.scenarios import fleet_figures
from lab.tests.simulate.costs import COSTS

pytestmark = pytest.mark.slow

CROWD = CrowdPlan((LoadStep(0.0, 60),), seconds=12.0, ramp_s=2.0, voices=4)
PLAN = FleetPlan(CROWD, token2wav=4, llms=2, gateways=2, start_s=3.0, restarted_at_once=1)
LETTERS_PER_S, TOKEN_S = 15.0, 0.04


def assert_all_were_heard(run: FleetRun) -> None:
    assert not [record.error for record in run.records if record.error]
    names = Counter(record.utt for record in run.records)
    assert set(names.values()) == {1}
    assert all(
        60 / LETTERS_PER_S - TOKEN_S <= record.audio_s <= 180 / LETTERS_PER_S + TOKEN_S for record in run.records
    )


def test_every_request_ends_once_and_no_server_keeps_a_stream() -> None:
    run = simulate_fleet(COSTS, PLAN)
    assert_all_were_heard(run)
    assert len(run.records) > CROWD.steps[0].listeners
    assert run.failovers == run.llm_failovers == run.refused == 0
    assert run.samples[-1].llm_running == sum(run.samples[-1].streams) == 0


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def times(seed: int) -> list[tuple[str, float, float]]:
        crowd = replace(CROWD, seed=seed, seconds=5.0)
        run = simulate_fleet(COSTS, replace(PLAN, crowd=crowd, lost_at_s=(2.5,)))
        return [(record.utt, record.sent_s, record.total_s) for record in run.records]

    assert times(1) == times(1) != times(2)


def test_streams_of_a_lost_server_go_on_elsewhere() -> None:
    run = simulate_fleet(COSTS, replace(PLAN, lost_at_s=(4.5, 5.1, 5.7, 6.3, 6.9, 7.5, 8.1), returns_after_s=0.5))
    assert run.failovers > 0
    assert_all_were_heard(run)


def test_answers_of_a_lost_llm_go_on_elsewhere() -> None:
    run = simulate_fleet(COSTS, replace(PLAN, llm_lost_at_s=(5.0,)))
    assert run.llm_failovers > 0
    assert_all_were_heard(run)


def test_a_rolling_update_loses_nothing() -> None:
    run = simulate_fleet(COSTS, replace(PLAN, rolling_update_at_s=2.0))
    assert_all_were_heard(run)
    emptied = [min(sample.streams[number] for sample in run.samples) for number in range(PLAN.token2wav)]
    assert emptied == [0] * PLAN.token2wav


def test_a_fleet_without_room_refuses_and_serves_the_rest() -> None:
    crowd = replace(CROWD, steps=(LoadStep(0.0, 10), LoadStep(4.0, 160)), seconds=6.0)
    run = simulate_fleet(COSTS, replace(PLAN, crowd=crowd, token2wav=1, max_streams=4))
    assert run.refused > 0
    assert not [record.error for record in run.records if record.error]
    assert max(max(sample.streams) for sample in run.samples) <= 4


def sample(at_s: float, streams: int, busy_s: float) -> FleetSample:
    return FleetSample(at_s, 60, [streams] * PLAN.token2wav, [busy_s] * PLAN.token2wav, 0, 0)


def test_streams_and_time_in_steps_are_those_while_the_whole_crowd_is_there() -> None:
    idle, busy = 0.0, 5.0  # of the seconds from 2 to 12
    samples = [
        sample(1, 1, idle),
        sample(2, 8, idle),
        sample(7, 10, busy / 2),
        sample(12, 6, busy),
        sample(24, 0, busy),
    ]
    figures = fleet_figures(PLAN, FleetRun([], 0, 0, 0, samples))
    assert figures["streams_per_replica"] == {"mean": 8, "max": 10}
    assert figures["token2wav_busy_share"] == {"mean": 0.5, "max": 0.5}


def test_the_time_in_steps_only_grows() -> None:
    run = simulate_fleet(COSTS, replace(PLAN, lost_at_s=(4.5,), returns_after_s=0.5))
    spent = [sample.busy_s for sample in run.samples]
    assert all(
        before <= after for one, next_one in pairwise(spent) for before, after in zip(one, next_one, strict=True)
    )
    assert 0 < fleet_figures(PLAN, run)["token2wav_busy_share"]["mean"] < 1


def test_other_draws_give_another_run_of_the_same_crowd() -> None:
    jittered = COSTS.with_parameters({"llm.step_spread": 0.2})

    def run(seed: int) -> FleetRun:
        return simulate_fleet(jittered, replace(PLAN, crowd=replace(CROWD, seconds=4.0), seed=seed))

    one, other = run(1), run(2)
    assert run(1) == one
    assert {r.utt: r.audio_s for r in one.records} == pytest.approx({r.utt: r.audio_s for r in other.records})
    assert [r.total_s for r in one.records] != [r.total_s for r in other.records]


@pytest.mark.parametrize("listeners", [10, 40])
def test_listeners_come_with_the_steps_of_the_load(listeners: int) -> None:
    crowd = replace(CROWD, steps=(LoadStep(0.0, 5), LoadStep(4.0, listeners)), ramp_s=1.0, seconds=7.0)
    run = simulate_fleet(COSTS, replace(PLAN, crowd=crowd))
    at = {round(sample.at_s): sample.listeners for sample in run.samples}
    assert (at[3], at[6]) == (5, listeners)
    assert len({record.utt.split("-")[1] for record in run.records}) == listeners
