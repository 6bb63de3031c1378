"""What is not chance in a simulation: figures in the middle of several that differ in the draws of the steps' times.

The tails of a closed loop's waits move from one draw to the next, as they do from one measurement to the next: the less
the longer the run is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.lib.simulate.compare import run_figures
from benchmarks.lib.simulate.costs import CostModel
from benchmarks.lib.simulate.parallel import mapping
from benchmarks.lib.simulate.single_gpu import simulate_sweep
from benchmarks.lib.sweep import RunPlan

DRAWS = 5
RunFigures = dict[str, dict[str, float]]
"""By the run's name, as `run_figures` has them."""


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
