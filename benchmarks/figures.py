"""The published figures of one machine, computed from raw samples: `python -m benchmarks.figures --help`.

Reads what `benchmarks.engine_gpu`, `benchmarks.end_to_end` and `cosydit batch --figures` wrote; measures nothing. Says
for every source where and with which commit it was taken. With --family it fills that family's part of a file of
several, which keeps what no new source was given for.
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
from benchmarks.lib.audible import heard_at_s, nearest_rank
from benchmarks.lib.plot import draw_sweep
from benchmarks.lib.points import LISTENERS_A_GATEWAY, GPUs, measured_json
from benchmarks.lib.sweep import RUN_SUFFIX, FinishedRun, read_run
from cosydit.bench.metrics import START_BUFFERS_S
from cosydit.bench.report import aligned_table, write_json
from cosydit.bench.types import BenchmarkError
from token2wav_service.checkpoint.family import Family

FAMILY_RUNS = ("closed-001", "poisson-016")
"""Runs that a family's end-to-end figures are computed from."""
TOGETHER, APART = GPUs(llm=0, token2wav=1), GPUs(llm=1, token2wav=1)
"""Both services on one GPU, and a GPU for each."""
_MS = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--engine", type=Path, help="JSON of benchmarks.engine_gpu (required without --family)")
    parser.add_argument(
        "--end-to-end", type=Path, help="directory of benchmarks.end_to_end (required without --family)"
    )
    parser.add_argument("--offline", type=Path, help="with --family: JSON of cosydit batch --figures")
    parser.add_argument(
        "--family", type=Family, choices=list(Family), help="family whose part of --out is to be filled"
    )
    parser.add_argument(
        "--points", type=Path, help="with --end-to-end: points for `cosydit plan` to write; the name says the GPU"
    )
    parser.add_argument(
        "--apart", type=Path, help="with --points: directory of benchmarks.end_to_end with a GPU for each service"
    )
    parser.add_argument("--without-mps", type=Path, help="directory of benchmarks.end_to_end without MPS")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--plot", type=Path, help="PNG of the sweep to write (needs matplotlib)")
    args = parser.parse_args(argv)
    if args.family is not None:
        return _fill_family(args)
    if args.engine is None or args.end_to_end is None:
        parser.error("--engine and --end-to-end are required without --family")
    try:
        engine = json.loads(args.engine.read_text("utf-8"))
        runs = read_runs(args.end_to_end)
        arrangements = [measured_json(TOGETHER, args.end_to_end.name, runs)]
        if args.apart is not None:
            arrangements.append(measured_json(APART, args.apart.name, read_runs(args.apart)))
        figures = {**compute_figures(engine["raw"]), **end_to_end_figures(runs)}
        sources = {
            "engine": {"file": args.engine.name, **_origin(engine)},
            "end_to_end": {"directory": args.end_to_end.name, **_sweep_origin(args.end_to_end)},
        }
        if args.without_mps is not None:
            figures |= figures_without_mps(read_runs(args.without_mps))
            sources["without_mps"] = {"directory": args.without_mps.name, **_sweep_origin(args.without_mps)}
    except (OSError, ValueError, LookupError, BenchmarkError) as error:
        print(f"figures: {error!r}", file=sys.stderr)
        return 1
    table = {name: _row(run) for name, run in runs.items()}
    write_json(args.out, {"figures": figures, "end_to_end": table, "sources": sources})
    if args.points is not None:
        held, environment = figures.get("realtime_streams"), sources["end_to_end"]["environment"]
        write_json(args.points, plan_points(args.points, arrangements, held, environment))
    if args.plot is not None:
        draw_sweep(args.plot, list(runs.values()))
    print(aligned_table([["figure", "value"], *([name, f"{value:.4g}"] for name, value in figures.items())]), end="")
    return 0


def _fill_family(args: argparse.Namespace) -> int:
    try:
        before = json.loads(args.out.read_text("utf-8")) if args.out.exists() else {}
        document = family_document(before, args.family, args.engine, args.end_to_end, args.offline)
        if args.points is not None and args.end_to_end is not None:
            held = document["figures"].get(f"{args.family.value}_realtime_streams")
            environment = document["sources"][args.family.value]["end_to_end"]["environment"]
            arrangement = measured_json(TOGETHER, args.end_to_end.name, read_runs(args.end_to_end))
            write_json(args.points, plan_points(args.points, [arrangement], held, environment))
    except (OSError, ValueError, LookupError, BenchmarkError) as error:
        print(f"figures: {error!r}", file=sys.stderr)
        return 1
    write_json(args.out, document)
    found = {name: value for name, value in document["figures"].items() if name.startswith(args.family.value)}
    print(aligned_table([["figure", "value"], *([name, f"{value:.4g}"] for name, value in found.items())]), end="")
    return 0


def family_document(
    before: Mapping[str, Any], family: Family, engine: Path | None, end_to_end: Path | None, offline: Path | None
) -> dict[str, Any]:
    """Return a document of several families with one's part filled from the sources that are given.

    Args:
        before: the document as it was; may be empty.
        family: whose figures these are; their names begin with it.
        engine: JSON of `benchmarks.engine_gpu`.
        end_to_end: directory of `benchmarks.end_to_end`, with the runs `FAMILY_RUNS`.
        offline: JSON of `cosydit batch --figures`.

    Raises:
        OSError, ValueError, LookupError: a source can't be read or holds something else.
        BenchmarkError: a run that a figure needs is missing.
    """
    figures, prefix = dict(before.get("figures", {})), f"{family.value}_"
    source = dict(before.get("sources", {}).get(family.value, {}))
    if engine is not None:
        content = json.loads(engine.read_text("utf-8"))
        figures |= compute_figures(content["raw"], prefix)
        source |= {name: content[name] for name in ("setting", "environment", "raw")}
    if end_to_end is not None:
        runs = read_runs(end_to_end)
        figures |= {prefix + name: value for name, value in end_to_end_figures(runs, FAMILY_RUNS).items()}
        source["end_to_end"] = {"runs": {name: _row(run) for name, run in runs.items()}, **_sweep_origin(end_to_end)}
    if offline is not None:
        content = json.loads(offline.read_text("utf-8"))
        figures[f"{prefix}offline_rtf"] = content["figures"]["rtf"]
        source["offline"] = {"figures": content["figures"], **_origin(content)}
    return {**before, "figures": figures, "sources": {**before.get("sources", {}), family.value: source}}


def plan_points(
    path: Path, arrangements: Sequence[Mapping[str, Any]], held: float | None, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return measured points for `cosydit plan`.

    Args:
        path: where they go, which names the GPU (see `cosydit.cli.plan.points_file`).
        arrangements: of GPUs, from `measured_json`.
        held: listeners that token2wav alone holds; None: not measured.
        environment: where the loops ran.
    """
    alone = "number of listeners not measured" if held is None else f"{held:g} listeners on one GPU, chunks of 1 s"
    return {
        "gpu": path.stem.split("_")[1],
        "token2wav_alone": f"token2wav alone: {alone}",
        "listeners_a_gateway": LISTENERS_A_GATEWAY,
        "arrangements": list(arrangements),
        "environment": environment,
    }


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
            figures |= open_loop_figures(run, f"poisson{int(rate)}")
        elif kind == "audible":
            figures |= audible_figures(run, int(rate))
        elif run.is_unseen:
            unseen = _MS * run.summary["ttfa_s"]["p50"]
            figures |= {"ttfa_unseen_p50_ms": unseen, "unseen_minus_known_ms": unseen - figures["ttfa_1_p50_ms"]}
    return figures


def figures_without_mps(runs: Mapping[str, FinishedRun]) -> dict[str, float]:
    """Compute the published figures of open loops on a GPU that the services take turns on."""
    figures: dict[str, float] = {}
    for name, run in runs.items():
        kind, _, rate = name.partition("-")
        if kind == "poisson":
            figures |= open_loop_figures(run, f"poisson{int(rate)}_no_mps")
    return figures


def open_loop_figures(run: FinishedRun, name: str) -> dict[str, float]:
    """Compute an open loop's published figures, whose names have `name` in them."""
    summary = run.summary
    return {
        f"ttfa_{name}_p95_ms": _MS * summary["ttfa_s"]["p95"],
        f"underrun_ratio_{name}": _underrun_ratio(summary),
        f"failed_ratio_{name}": summary["failures"] / summary["requests"],
    }


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


def _sweep_origin(directory: Path) -> dict[str, Any]:
    return _origin(json.loads((directory / ENVIRONMENT_FILE).read_text("utf-8")))


def _origin(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"setting": source.get("setting"), "environment": source.get("environment")}


if __name__ == "__main__":
    sys.exit(main())
