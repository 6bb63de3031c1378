"""Steps that differ: around their mean, as far as asked, and the same in every simulation."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from random import Random

import pytest

from benchmarks.lib.sweep import RunPlan
from cosydit.bench.load import LoadPlan
from lab.simulate.compute import Jitter
from lab.simulate.costs import CostModel
from lab.simulate.single_gpu import simulate_plans
from lab.tests.simulate.costs import COSTS


def test_factors_have_mean_1_and_the_spread_that_was_asked_for() -> None:
    jitter = Jitter(0.25, Random(1))
    factors = [jitter.factor() for _ in range(20_000)]
    assert statistics.fmean(factors) == pytest.approx(1.0, abs=0.01)
    assert statistics.stdev(map(math.log, factors)) == pytest.approx(0.25, rel=0.03)
    assert Jitter(0.0, Random(1)).factor() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("service", ["llm", "token2wav"])
def test_either_services_steps_jitter_alike_in_every_simulation(service: str) -> None:
    plan = RunPlan("closed", LoadPlan(2, 6), ("default",))
    jittery = replace(COSTS, **{service: replace(getattr(COSTS, service), step_spread=0.2)})

    def first_audios(costs: CostModel) -> list[float]:
        (run,) = simulate_plans(costs, [plan], (1,))
        return [record.arrivals[0].at_s for record in run.result.records]

    assert first_audios(jittery) == first_audios(jittery)
    assert first_audios(jittery) != first_audios(COSTS)
