"""What may happen to a fleet, by name, for any number of listeners; and the figures of what did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cosydit.bench.metrics import distribution, playback_underrun
from lab.simulate.crowd import CrowdPlan, LoadStep
from lab.simulate.fleet import FleetPlan, FleetRun, FleetSample

_MS = 1000.0
_LOST_SHARE = 16
"""Share of token2wav servers lost at once: one in so many."""
_STEP_SHARES = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Steps: moments as shares of the time, listeners as shares of all."""
_EVENT_SHARE = 0.5
_UPDATE_AT_S = 12.0
_DRAIN_S = 3.0
_RESTARTED_SHARE = 4
_START_S = 12.8
"""Seconds of a start measured on an H200: `start_s` of benchmarks/results/h200_engine.json."""


@dataclass(frozen=True)
class FleetSize:
    """How much of everything."""

    listeners: int = 10_000
    token2wav: int = 64
    llms: int = 28
    gateways: int = 40
    seconds: float = 30.0


def steady(size: FleetSize) -> FleetPlan:
    """All listeners from the beginning on, and nothing happens."""
    crowd = CrowdPlan((LoadStep(0.0, size.listeners),), size.seconds)
    return FleetPlan(crowd, size.token2wav, size.llms, size.gateways)


def loss(size: FleetSize) -> FleetPlan:
    """One in sixteen token2wav servers is lost at one moment, and one LLM with them."""
    at_s = _EVENT_SHARE * size.seconds
    lost = max(1, size.token2wav // _LOST_SHARE)
    plan = steady(size)
    return replace(plan, lost_at_s=(at_s,) * lost, llm_lost_at_s=(at_s,) if size.llms > 1 else ())


def update(size: FleetSize) -> FleetPlan:
    """Every token2wav server is restarted, one in four at once; takes as long as that takes."""
    at_once = max(1, size.token2wav // _RESTARTED_SHARE)
    seconds = max(size.seconds, _UPDATE_AT_S + _RESTARTED_SHARE * (_START_S + _DRAIN_S))
    plan = steady(replace(size, seconds=seconds))
    return replace(plan, rolling_update_at_s=_UPDATE_AT_S, restarted_at_once=at_once, start_s=_START_S)


def steps(size: FleetSize) -> FleetPlan:
    """A quarter more of the listeners comes at each quarter of the time, at once."""
    load = tuple(LoadStep(at * size.seconds, round(share * size.listeners)) for at, share in _STEP_SHARES)
    return replace(steady(size), crowd=CrowdPlan(load, size.seconds, ramp_s=1.0))


SCENARIOS: dict[str, Callable[[FleetSize], FleetPlan]] = {
    "steady": steady,
    "loss": loss,
    "update": update,
    "steps": steps,
}


def fleet_figures(plan: FleetPlan, run: FleetRun) -> dict[str, Any]:
    """Return a run's figures ready for JSON.

    The requests are all that were made. Open streams and the share of time in steps are taken while the whole crowd is
    there: before that, and after the last request, there is less to do.
    """
    good = [record for record in run.records if record.is_ok]
    late = [playback_underrun(record.arrivals, 0.0) for record in good]
    ttfa = distribution(record.ttfa_s for record in good)
    begins_s, ends_s = plan.crowd.complete_s
    crowded = [sample for sample in run.samples if begins_s <= sample.at_s <= ends_s]
    loads = [streams for sample in crowded for streams in sample.streams]
    busy = _busy_shares(crowded)
    return {
        "requests": len(run.records),
        "failed": len(run.records) - len(good),
        "refused": run.refused,
        "failovers": {"token2wav": run.failovers, "llm": run.llm_failovers},
        "ttfa_ms": {f"p{point}": _MS * value for point, value in ttfa.percentiles.items()} if ttfa else None,
        "underrun_ratio": sum(underrun.gaps > 0 for underrun in late) / len(good) if good else None,
        "worst_pause_s": max((underrun.short_s for underrun in late), default=0.0),
        "audio_s": sum(record.audio_s for record in good),
        "streams_per_replica": {"mean": sum(loads) / len(loads), "max": max(loads)} if loads else None,
        "token2wav_busy_share": {"mean": sum(busy) / len(busy), "max": max(busy)} if busy else None,
        "llm_waiting_max": max((sample.llm_waiting for sample in run.samples), default=0),
    }


def fleet_timeline(run: FleetRun) -> list[dict[str, Any]]:
    """Return second by second what was open and what the requests of that second got."""
    ttfa_by_second: dict[int, list[float]] = {}
    for record in run.records:
        if record.ttfa_s is not None:
            ttfa_by_second.setdefault(int(record.sent_s), []).append(record.ttfa_s)
    return [
        {
            "at_s": round(sample.at_s, 3),
            "listeners": sample.listeners,
            "streams": {"min": min(sample.streams), "mean": _mean(sample.streams), "max": max(sample.streams)},
            "llm_running": sample.llm_running,
            "llm_waiting": sample.llm_waiting,
            "ttfa_ms": _points(ttfa_by_second.get(int(sample.at_s), [])),
        }
        for sample in run.samples
    ]


def plan_json(plan: FleetPlan) -> dict[str, Any]:
    """Return a plan ready for JSON."""
    return asdict(plan)


def _busy_shares(samples: Sequence[FleetSample]) -> list[float]:
    """Return the share of each token2wav server's time in steps, from the first of the samples to the last."""
    if not samples or samples[-1].at_s <= samples[0].at_s:
        return []
    first, last = samples[0], samples[-1]
    spent_s = zip(first.busy_s, last.busy_s, strict=True)
    return [(until_s - before_s) / (last.at_s - first.at_s) for before_s, until_s in spent_s]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _points(ttfa_s: Sequence[float]) -> dict[str, float] | None:
    described = distribution(ttfa_s)
    return {f"p{point}": _MS * value for point, value in described.percentiles.items()} if described else None
