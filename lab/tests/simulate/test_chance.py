"""Figures of several draws: they differ, come out alike every time, and their medians are taken one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.lib.sweep import RunPlan
from cosydit.bench.load import LoadPlan
from lab.simulate import single_gpu
from lab.simulate.compare import drawn_figures, median_figures
from lab.tests.simulate.costs import COSTS

JITTERED = {
    "llm": replace(COSTS, llm=replace(COSTS.llm, step_spread=0.2)),
    "token2wav": replace(COSTS, token2wav=replace(COSTS.token2wav, step_spread=0.2)),
}
BOTH = replace(JITTERED["llm"], token2wav=JITTERED["token2wav"].token2wav)
PLANS = [RunPlan("two", LoadPlan(2, 4), ("default", "second"))]


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests at once at most; other processes are forks and inherit it."""
    monkeypatch.setattr(single_gpu, "WARM_UP_BURST", 4)


@pytest.mark.parametrize("service", JITTERED)
def test_draws_differ(service: str) -> None:
    drawn = drawn_figures(JITTERED[service], PLANS, draws=3)
    assert len({each["two"]["ttfa_p50_ms"] for each in drawn}) == 3


@pytest.mark.slow
def test_draws_are_the_same_again_in_other_processes() -> None:
    assert drawn_figures(BOTH, PLANS, draws=3, processes=2) == drawn_figures(BOTH, PLANS, draws=3)


def test_each_figure_has_its_own_median() -> None:
    drawn = [{"a": {"x": x, "y": y}} for x, y in ((1.0, 9.0), (2.0, 8.0), (7.0, 1.0))]
    assert median_figures(drawn) == {"a": {"x": 2.0, "y": 8.0}}
