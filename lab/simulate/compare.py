"""Holds simulated runs against measured ones: the figures, how far each is off, which runs the model was fitted to.

The tails of a closed loop's waits move from one draw of the steps' times to the next, as they do from one measurement
to the next: the less the longer the run is. So a simulated figure is the median of several draws.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.lib.sweep import FinishedRun, RunPlan
from cosydit.bench.metrics import START_BUFFERS_S
from lab.simulate.costs import CostModel
from lab.simulate.single_gpu import simulate_sweep

AIM = 0.15
"""Relative error that a prediction should stay within."""
FIGURES = ("ttfa_p50_ms", "ttfa_p95_ms", "ttfa_p99_ms", "audio_s_per_s", "total_p50_ms")
_MS, _WHOLE = 1000.0, 100.0


@dataclass(frozen=True)
class ComparedRun:
    """One run, measured and simulated."""

    name: str
    is_fitted: bool
    """True where the model's parameters come from it, so that it proves nothing."""
    measured: dict[str, float]
    simulated: dict[str, float]

    def error(self, figure: str) -> float:
        """Return how far the simulation is off, relative to the measurement."""
        return self.simulated[figure] / self.measured[figure] - 1.0


def run_figures(run: FinishedRun) -> dict[str, float]:
    """Return a run's figures: times in ms, seconds of audio a second, shares."""
    summary: dict[str, Any] = run.summary
    silence = summary["underruns"][START_BUFFERS_S.index(0.0)]
    return {
        **{f"ttfa_{point}_ms": _MS * summary["ttfa_s"][point] for point in ("p50", "p95", "p99")},
        "audio_s_per_s": summary["audio_s_per_s"],
        "total_p50_ms": _MS * summary["total_s"]["p50"],
        "underrun_ratio": silence["requests"] / silence["of_requests"],
        "failed_ratio": summary["failures"] / summary["requests"],
    }


def compare(
    simulated: Mapping[str, dict[str, float]], measured: Mapping[str, FinishedRun], fitted: Collection[str]
) -> list[ComparedRun]:
    """Compare every simulated run that was measured too.

    Args:
        simulated: figures by run, as `run_figures` has them.
        measured: the runs by name.
        fitted: names of those that the model's parameters come from.
    """
    return [
        ComparedRun(name, name in fitted, run_figures(measured[name]), figures)
        for name, figures in simulated.items()
        if name in measured
    ]


def comparison_json(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return the comparison ready for JSON."""
    return [
        {
            "run": run.name,
            "role": "fitted" if run.is_fitted else "left out",
            "measured": run.measured,
            "simulated": run.simulated,
            "error": {figure: run.error(figure) for figure in FIGURES},
        }
        for run in runs
    ]


def comparison_rows(runs: Sequence[ComparedRun]) -> list[list[str]]:
    """Return a table: measured -> simulated (error) of every figure."""
    rows = [["run", "", *FIGURES]]
    for run in runs:
        cells = [f"{run.measured[f]:.0f} -> {run.simulated[f]:.0f} ({_WHOLE * run.error(f):+.0f} %)" for f in FIGURES]
        rows.append([run.name, "fitted" if run.is_fitted else "left out", *cells])
    return rows


def worst_errors(runs: Sequence[ComparedRun]) -> dict[str, float]:
    """Return the largest error of each figure over the runs that the model was not fitted to."""
    left_out = [run for run in runs if not run.is_fitted]
    return {figure: max((abs(run.error(figure)) for run in left_out), default=0.0) for figure in FIGURES}


DRAWS = 5
RunFigures = dict[str, dict[str, float]]
"""Figures by the run's name, as `run_figures` returns them."""


def drawn_figures(
    costs: CostModel, plans: Sequence[RunPlan], draws: int = DRAWS, processes: int = 1
) -> list[RunFigures]:
    """Simulate a sweep with several draws.

    Args:
        costs: what everything takes.
        plans: the sweep's runs.
        draws: how many.
        processes: that simulate at once.
    """
    with mapping(processes) as run_all:
        return list(run_all(partial(_figures, costs, tuple(plans)), range(draws)))


def median_figures(drawn: Sequence[RunFigures]) -> RunFigures:
    """Return every figure's median over the draws."""
    return {
        name: {figure: statistics.median(each[name][figure] for each in drawn) for figure in figures}
        for name, figures in drawn[0].items()
    }


def _figures(costs: CostModel, plans: tuple[RunPlan, ...], seed: int) -> RunFigures:
    return {run.name: run_figures(run) for run in simulate_sweep(costs, plans, seed)}


MapLike = Callable[..., Iterator[Any]]
"""Called as `map` is; results come in order."""


@contextmanager
def mapping(processes: int) -> Iterator[MapLike]:
    """Give something that maps in so many processes; one is this process, where nothing has to be pickled."""
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes) as pool:
        yield pool.map
