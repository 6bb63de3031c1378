"""How many listeners some GPUs served, and how long they waited: the points that `cosydit plan` reads.

They come from the open loops of `benchmarks.end_to_end`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.lib.sweep import FinishedRun

LISTENERS_A_GATEWAY = 250
"""Listeners for each gateway process, few enough that its own queue is not what is measured."""
PILED_UP = 2.0
"""Requests pile up if those of a run's later half wait more than so many times as long (median) as the earlier ones."""
_MS = 1000.0


@dataclass(frozen=True)
class CapacityPoint:
    """One load and what its listeners got."""

    listeners: float
    """Measured: seconds of audio asked for in a second. Simulated: listeners, each with one utterance after another."""
    ttfa_p50_ms: float
    ttfa_p95_ms: float
    underrun_ratio: float
    """Share of utterances that ran dry when playback began at the first sample."""
    hearing_ratio: float
    """Share of listeners that hear speech at a time. A waiting one asks for nothing, so that a queue does not grow for
    ever in a simulation; 1 where requests come whether or not those before were served."""
    is_held: bool
    """Whether nobody was refused, nothing failed, and requests did not pile up."""


@dataclass(frozen=True)
class GPUs:
    """Some GPUs, each for one service."""

    llm: int
    token2wav: int


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
        p50_ms, p95_ms = (_MS * summary["ttfa_s"][point] for point in ("p50", "p95"))
        is_held = summary["failures"] == 0 and not _piles_up(run)
        points.append(CapacityPoint(offered, p50_ms, p95_ms, dry, 1.0, is_held))
    return sorted(points, key=lambda point: point.listeners)


def _piles_up(run: FinishedRun) -> bool:
    records = sorted(run.result.records, key=lambda record: record.sent_s)
    waits_s = [record.ttfa_s for record in records if record.ttfa_s is not None]
    half = len(waits_s) // 2
    return half > 0 and median(waits_s[half:]) > PILED_UP * median(waits_s[:half])


def unit_json(gpus: GPUs, points: Sequence[CapacityPoint], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return one arrangement of GPUs ready for JSON; none of its own for the LLM means that both share each GPU."""
    return {
        "llm_gpus": gpus.llm,
        "token2wav_gpus": gpus.token2wav,
        "points": [asdict(point) for point in points],
        "source": source,
    }


def measured_json(gpus: GPUs, directory: str, runs: Mapping[str, FinishedRun]) -> dict[str, Any]:
    """Return the arrangement that a sweep measured: its open loops, without the runs that listen.

    Args:
        gpus: that the services had.
        directory: that the runs are from, for people.
        runs: of `benchmarks.end_to_end`, by name.
    """
    loops = [run for name, run in runs.items() if name.startswith("poisson")]
    return unit_json(gpus, measured_points(loops), {"kind": "measured", "text": f"open loops, {directory}"})
