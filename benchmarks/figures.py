"""The published figures of one machine, computed from raw samples: `python -m benchmarks.figures --help`.

Reads what `benchmarks.engine_gpu` and `benchmarks.end_to_end` wrote; measures nothing. Says for every source where and
with which commit it was taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import ENVIRONMENT_FILE
from benchmarks.engine_gpu import compute_figures
from benchmarks.lib.plot import draw_sweep
from benchmarks.lib.sweep import RUN_SUFFIX, FinishedRun, read_run
from cosydit.bench.audible import heard_at_s, nearest_rank
from cosydit.bench.metrics import START_BUFFERS_S
from cosydit.bench.report import aligned_table, write_json
from cosydit.bench.types import BenchmarkError

_MS = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--engine", type=Path, required=True, help="JSON of benchmarks.engine_gpu")
    parser.add_argument("--end-to-end", type=Path, required=True, help="directory of benchmarks.end_to_end")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--plot", type=Path, help="PNG of the sweep to write (needs matplotlib)")
    args = parser.parse_args(argv)
    try:
        engine = json.loads(args.engine.read_text("utf-8"))
        runs = read_runs(args.end_to_end)
        figures = {**compute_figures(engine["raw"]), **end_to_end_figures(runs)}
        setting = json.loads((args.end_to_end / ENVIRONMENT_FILE).read_text("utf-8"))
    except (OSError, ValueError, LookupError, BenchmarkError) as error:
        print(f"figures: {error!r}", file=sys.stderr)
        return 1
    sources = {
        "engine": {"file": args.engine.name, **_origin(engine)},
        "end_to_end": {"directory": args.end_to_end.name, **_origin(setting)},
    }
    table = {name: _row(run) for name, run in runs.items()}
    write_json(args.out, {"figures": figures, "end_to_end": table, "sources": sources})
    if args.plot is not None:
        draw_sweep(args.plot, list(runs.values()))
    print(aligned_table([["figure", "value"], *([name, f"{value:.4g}"] for name, value in figures.items())]), end="")
    return 0


def read_runs(directory: Path) -> dict[str, FinishedRun]:
    """Read every run of a sweep, by name."""
    return {run.name: run for run in map(read_run, sorted(directory.glob(f"*{RUN_SUFFIX}")))}


def end_to_end_figures(
    runs: Mapping[str, FinishedRun], required: Sequence[str] = ("closed-001", "poisson-032")
) -> dict[str, float]:
    """Compute the published figures of a sweep, which must hold the `required` runs and one of a single caller.

    Raises:
        BenchmarkError: a run that a figure needs is missing.
    """
    for name in required:
        _summary(runs, name)
    alone = _summary(runs, "closed-001")
    figures = {"ttfa_1_p50_ms": _MS * alone["ttfa_s"]["p50"]}
    for name, run in runs.items():
        kind, _, rate = name.partition("-")
        if kind == "poisson":
            summary = run.summary
            figures[f"ttfa_poisson{int(rate)}_p95_ms"] = _MS * summary["ttfa_s"]["p95"]
            figures[f"underrun_ratio_poisson{int(rate)}"] = _underrun_ratio(summary)
            figures[f"failed_ratio_poisson{int(rate)}"] = summary["failures"] / summary["requests"]
        elif kind == "audible":
            figures |= audible_figures(run, int(rate))
        elif run.is_unseen:
            figures["ttfa_unseen_p50_ms"] = _MS * run.summary["ttfa_s"]["p50"]
    return figures


def audible_figures(run: FinishedRun, requests_per_s: int) -> dict[str, float]:
    """Compute what `tts_bench` reports of one rate: times from dispatch, percentiles by nearest rank.

    Raises:
        BenchmarkError: no request brought a sound.
    """
    heard = [record for record in run.result.records if record.is_ok and record.silence_s is not None]
    if not heard:
        raise BenchmarkError(f"run {run.name} has no request with a sound; make it again")
    audible_ms = [_MS * (heard_at_s(r.arrivals, r.silence_s or 0.0) - r.dispatch_s) for r in heard]
    name = f"audible_poisson{requests_per_s}"
    return {
        f"{name}_p50_ms": nearest_rank(audible_ms, 50),
        f"{name}_p95_ms": nearest_rank(audible_ms, 95),
        f"{name}_silence_p50_ms": _MS * nearest_rank([r.silence_s or 0.0 for r in heard], 50),
        f"underrun_ratio_audible{requests_per_s}": _underrun_ratio(run.summary),
        f"failed_ratio_audible{requests_per_s}": run.summary["failures"] / run.summary["requests"],
    }


def _summary(runs: Mapping[str, FinishedRun], name: str) -> dict[str, Any]:
    if name not in runs:
        raise BenchmarkError(f"run {name} is missing; make it with python -m benchmarks.end_to_end")
    return runs[name].summary


def _underrun_ratio(summary: Mapping[str, Any]) -> float:
    """Requests whose playback, begun at the first sample, ran dry at least once, over those that ended well."""
    underrun = summary["underruns"][START_BUFFERS_S.index(0.0)]
    return float(underrun["requests"] / underrun["of_requests"])


def _row(run: FinishedRun) -> dict[str, Any]:
    summary = run.summary
    ttfa_ms = {point: _MS * summary["ttfa_s"][point] for point in ("p50", "p95", "p99")} if summary["ttfa_s"] else None
    silence = [
        {name: underrun[name] for name in ("buffer_s", "requests", "gaps", "short_s", "worst_s")}
        for underrun in summary["underruns"]
    ]
    counts = {name: summary[name] for name in ("requests", "failures", "wall_s", "audio_s_per_s")}
    return {**counts, "ttfa_ms": ttfa_ms, "underruns": silence}


def _origin(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"setting": source.get("setting"), "environment": source.get("environment")}


if __name__ == "__main__":
    sys.exit(main())
