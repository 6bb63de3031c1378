"""How many listeners some GPUs serve, and how long they then wait: the points that `cosydit plan` reads.

Measured: both services on one GPU, from the open loops of `benchmarks.end_to_end`. Simulated: the services apart, some
GPUs of each, over the fitted cost model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from benchmarks.lib.simulate.costs import CostModel
from benchmarks.lib.simulate.crowd import CrowdPlan, LoadStep
from benchmarks.lib.simulate.fleet import FleetPlan, simulate_fleet
from benchmarks.lib.simulate.scenarios import fleet_figures
from benchmarks.lib.sweep import FinishedRun

LISTENERS_A_GATEWAY = 250
"""One gateway process for so many: its own queue must not be what is measured."""
_MS = 1000.0


@dataclass(frozen=True)
class CapacityPoint:
    """One load and what its listeners got."""

    listeners: float
    """Who hear speech at the same time: seconds of audio a second."""
    ttfa_p50_ms: float
    ttfa_p95_ms: float
    underrun_ratio: float


def measured_points(runs: Iterable[FinishedRun]) -> list[CapacityPoint]:
    """Return the open loops of a sweep, by load; what they offer is what their listeners play in real time."""
    points = []
    for run in runs:
        if run.load["requests_per_s"] is None:
            continue
        summary = run.summary
        good = summary["requests"] - summary["failures"]
        offered = run.load["requests_per_s"] * summary["audio_s"] / good
        dry = summary["underruns"][0]["requests"] / good
        points.append(CapacityPoint(offered, _MS * summary["ttfa_s"]["p50"], _MS * summary["ttfa_s"]["p95"], dry))
    return sorted(points, key=lambda point: point.listeners)


def simulated_points(
    costs: CostModel, llms: int, token2wav: int, listeners: Sequence[int], seconds: float
) -> list[CapacityPoint]:
    """Simulate so many GPUs of each service under ascending loads, up to the first that it can't hold.

    A load is held while nobody is refused or fails and requests don't pile up before the LLM.
    """
    points: list[CapacityPoint] = []
    for number in listeners:
        crowd = CrowdPlan((LoadStep(0.0, number),), seconds)
        plan = FleetPlan(crowd, token2wav, llms, gateways=ceil(number / LISTENERS_A_GATEWAY))
        figures = fleet_figures(plan, simulate_fleet(costs, plan))
        if figures["refused"] or figures["failed"]:
            break
        ttfa = figures["ttfa_ms"]
        points.append(CapacityPoint(float(number), ttfa["p50"], ttfa["p95"], figures["underrun_ratio"]))
    return points


def unit_json(llms: int, token2wav: int, points: Sequence[CapacityPoint], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return one arrangement of GPUs ready for JSON; none of one's own for the LLM means that both share each GPU."""
    return {
        "llm_gpus": llms,
        "token2wav_gpus": token2wav,
        "points": [asdict(point) for point in points],
        "source": source,
    }
