"""Parameters are found again from figures that a known model made, and models survive their file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lib.sweep import RunPlan
from cosydit.bench.load import LoadPlan
from cosydit.bench.types import BenchmarkError
from lab.simulate.costs import CostModel, StepCost, cost_json, cost_model, read_cost_model
from lab.simulate.fit import FINAL_SEEDS, FINALISTS, figures_of, fit, fit_step
from lab.simulate.single_gpu import simulate_plans
from lab.tests.simulate.costs import COSTS

SHAPES = [(1, 15), (4, 15), (16, 15), (64, 15), (1, 25), (16, 25), (32, 25), (4, 50), (16, 50)]
PLANS = [RunPlan("one", LoadPlan(1, 1), ("default",)), RunPlan("six", LoadPlan(6, 6), ("default", "second"))]


def simulate(model: CostModel, seed: int = 0) -> dict[str, dict[str, float]]:
    return {run.name: figures_of(run) for run in simulate_plans(model, PLANS, (4,), seed)}


def test_a_step_is_found_again_from_its_times() -> None:
    truth = StepCost(0.012, 0.0002, 0.00003)
    found = fit_step([(streams, tokens, truth.of(streams, tokens)) for streams, tokens in SHAPES])
    assert (found.fixed_s, found.per_stream_s, found.per_token_s) == pytest.approx((0.012, 0.0002, 0.00003))


def test_a_step_is_found_through_noise() -> None:
    truth = StepCost(0.012, 0.0002, 0.00003)
    noisy = [(s, t, truth.of(s, t) * (1.02 if number % 2 else 0.98)) for number, (s, t) in enumerate(SHAPES)]
    found = fit_step(noisy)
    assert all(found.of(s, t) == pytest.approx(truth.of(s, t), rel=0.04) for s, t in SHAPES)


@pytest.mark.slow
def test_parameters_are_found_again_from_runs_that_they_made() -> None:
    truth = COSTS.with_parameters({"llm.step_fixed_s": 0.003, "gateway.latency_s": 0.02})
    targets = simulate(truth)
    parameters = ("llm.step_fixed_s", "gateway.latency_s")
    found = fit(COSTS, simulate, targets, parameters, simulations=24)
    assert found.loss < fit(COSTS, simulate, targets, parameters, simulations=1).loss / 10
    assert found.model.parameter("llm.step_fixed_s") == pytest.approx(0.003, rel=0.1)
    assert found.model.parameter("gateway.latency_s") == pytest.approx(0.02, rel=0.25)


def test_a_model_is_the_same_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"model": cost_json(COSTS)}), "utf-8")
    assert read_cost_model(path) == cost_model(cost_json(COSTS)) == COSTS


def test_a_file_without_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"model": {"gpu": "x"}}', "utf-8")
    with pytest.raises(BenchmarkError, match="holds no cost model"):
        read_cost_model(path)


def test_one_parameter_is_changed_and_the_others_stay() -> None:
    changed = COSTS.with_parameters({"token2wav.step.fixed_s": 0.5})
    step = replace(COSTS.token2wav.step, fixed_s=0.5)
    assert changed == replace(COSTS, token2wav=replace(COSTS.token2wav, step=step))


@pytest.mark.slow
def test_the_same_is_found_whatever_the_processes() -> None:
    targets = simulate(COSTS.with_parameters({"llm.step_fixed_s": 0.003}))
    one, two = (fit(COSTS, simulate, targets, ("llm.step_fixed_s",), simulations=3, processes=n) for n in (1, 2))
    assert one == two


def test_luck_in_one_draw_does_not_win_a_search() -> None:
    """Seed 0 flatters whoever is far off, so that only other draws tell which of the best is good."""
    targets = {"one": {"ttfa_p50": 1.0}}

    def flattering(model: CostModel, seed: int) -> dict[str, dict[str, float]]:
        off = abs(math.log(model.parameter("gateway.latency_s") / COSTS.parameter("gateway.latency_s")))
        return {"one": {"ttfa_p50": math.exp(1.0 - off if seed == 0 else 1.0 + off)}}

    found = fit(COSTS, flattering, targets, ("gateway.latency_s",), simulations=FINALISTS - 1)
    assert found.model.parameter("gateway.latency_s") == pytest.approx(COSTS.gateway.latency_s)
    assert found.simulations == FINALISTS - 1 + FINALISTS * len(FINAL_SEEDS)
