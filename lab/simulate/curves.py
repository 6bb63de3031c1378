"""Simulates how many listeners some GPUs serve, and how long they then wait: the services apart, some GPUs of each.

│ listeners come  │ all are there            │ those under way end │
│                 │ what is asked for counts │                     │
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from math import ceil

from benchmarks.lib.points import LISTENERS_A_GATEWAY, CapacityPoint, GPUs
from cosydit.bench.metrics import percentile, playback_underrun
from cosydit.bench.types import BenchmarkError, RequestRecord
from lab.simulate.compare import mapping
from lab.simulate.costs import CostModel
from lab.simulate.crowd import CrowdPlan, LoadStep
from lab.simulate.fleet import FleetPlan, FleetRun, simulate_fleet

POINT_DRAWS = 3
LEAST_HEARING_RATIO = 0.95
"""Least share of listeners that hear speech while a load is held: with utterances of 8 s they wait 0.4 s on average,
and any longer only where requests pile up."""
_MS = 1000.0


def simulated_points(
    costs: CostModel,
    gpus: GPUs,
    listeners: Sequence[int],
    seconds: float,
    draws: int = POINT_DRAWS,
    processes: int = 1,
) -> list[CapacityPoint]:
    """Simulate GPUs under ascending loads; returns the points up to the first load that is not held, with that one.

    A load is held while nobody is refused, nothing fails and requests don't pile up before the LLM.

    Args:
        costs: what everything takes.
        gpus: of each service.
        listeners: loads to try.
        seconds: of each simulation, in which the listeners come within the first ten.
        draws: simulations of each load, with other utterances and other times of the steps; figures are their medians.
        processes: that simulate at once.
    """
    tried = [number for number in listeners for _ in range(draws)]
    seeds = [seed for _ in listeners for seed in range(draws)]
    with mapping(processes) as run_all:
        drawn = list(run_all(partial(_simulate, costs, gpus, seconds), tried, seeds))
    points = [median_point(drawn[begin : begin + draws]) for begin in range(0, len(drawn), draws)]
    held = next((number for number, point in enumerate(points) if not point.is_held), len(points))
    return points[: held + 1]


def simulated_point(crowd: CrowdPlan, run: FleetRun) -> CapacityPoint:
    """Return what listeners got who asked while all of them were there.

    Raises:
        BenchmarkError: nobody got anything.
    """
    (begins_s, ends_s), listeners = crowd.complete_s, crowd.steps[-1].listeners
    counted = [record for record in run.records if record.is_ok and begins_s <= record.sent_s < ends_s]
    if not counted:
        got = f"got no audio for {listeners} listeners between {begins_s:g} and {ends_s:g} s, expected some"
        raise BenchmarkError(f"{got}; try fewer of them, or more seconds")
    first_ms = [_MS * record.arrivals[0].at_s for record in counted]
    dry = sum(playback_underrun(record.arrivals, 0.0).gaps > 0 for record in counted) / len(counted)
    heard_s = sum(_heard_s(record, begins_s, ends_s) for record in run.records)
    hearing = heard_s / (listeners * (ends_s - begins_s))
    are_all_served = not run.refused and all(record.is_ok for record in run.records)
    is_held = are_all_served and hearing >= LEAST_HEARING_RATIO
    return CapacityPoint(float(listeners), percentile(first_ms, 50), percentile(first_ms, 95), dry, hearing, is_held)


def median_point(drawn: Sequence[CapacityPoint]) -> CapacityPoint:
    """Return the medians of one load's figures; it is held if every draw held it."""
    medians = {
        name: statistics.median(getattr(point, name) for point in drawn)
        for name in ("listeners", "ttfa_p50_ms", "ttfa_p95_ms", "underrun_ratio", "hearing_ratio")
    }
    return CapacityPoint(**medians, is_held=all(point.is_held for point in drawn))


def _simulate(costs: CostModel, gpus: GPUs, seconds: float, listeners: int, seed: int) -> CapacityPoint:
    crowd = CrowdPlan((LoadStep(0.0, listeners),), seconds, seed=seed)
    gateways = ceil(listeners / LISTENERS_A_GATEWAY)
    return simulated_point(
        crowd, simulate_fleet(costs, FleetPlan(crowd, gpus.token2wav, gpus.llm, gateways, seed=seed))
    )


def _heard_s(record: RequestRecord, begins_s: float, ends_s: float) -> float:
    """Return the seconds of a request's audio that were played between two moments, from its first sample on."""
    if not record.arrivals:
        return 0.0
    plays_s = record.sent_s + record.arrivals[0].at_s
    played_s = record.audio_s + playback_underrun(record.arrivals, 0.0).short_s
    within_s = min(plays_s + played_s, ends_s) - max(plays_s, begins_s)
    return max(within_s, 0.0) * record.audio_s / played_s
