"""Figures of several draws: they differ, come out alike every time, and their medians are taken one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.lib.simulate.compare import drawn_figures, median_figures
from benchmarks.lib.sweep import RunPlan
from cosydit.bench.load import LoadPlan
from tests.benchmarks.simulate.costs import COSTS

JITTERED = {
    "llm": replace(COSTS, llm=replace(COSTS.llm, step_spread=0.2)),
    "token2wav": replace(COSTS, token2wav=replace(COSTS.token2wav, step_spread=0.2)),
}
PLANS = [RunPlan("four", LoadPlan(4, 8), ("default", "second"))]


@pytest.mark.slow
@pytest.mark.parametrize("service", JITTERED)
def test_draws_differ_and_are_the_same_again_in_other_processes(service: str) -> None:
    first, second, third = drawn_figures(JITTERED[service], PLANS, draws=3)
    assert len({each["four"]["ttfa_p50_ms"] for each in (first, second, third)}) == 3
    assert drawn_figures(JITTERED[service], PLANS, draws=3, processes=2) == [first, second, third]


def test_each_figure_has_its_own_median() -> None:
    drawn = [{"a": {"x": x, "y": y}} for x, y in ((1.0, 9.0), (2.0, 8.0), (7.0, 1.0))]
    assert median_figures(drawn) == {"a": {"x": 2.0, "y": 8.0}}
