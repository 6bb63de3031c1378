"""End to end under load: a sweep of callers and of request rates through the gateway of running services.

`python -m benchmarks.end_to_end --url http://127.0.0.1:8080 --out DIR`. Times are taken at the client's socket from
when a request was due. Runs that are in DIR already are not made again, so --limit-s cuts a sweep into parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.lib.sweep import (
    OPEN_S,
    REQUESTS_A_CALLER,
    RUN_SUFFIX,
    FinishedRun,
    RunPlan,
    Sweep,
    SweepLoad,
    read_run,
    unseen_run,
    warm_up_bursts,
)
from cosydit.bench.metrics import START_BUFFERS_S, percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import BenchmarkError
from servicekit.process import exempt_startup_objects

ENVIRONMENT_FILE = "environment.json"
HEAD = ("run", "requests", "failed", "ttfa p50 ms", "p95 ms", "p99 ms", "gaps", "of", "audio s/s", "late p99 ms")
EXIT_FAILURES, EXIT_USAGE, EXIT_UNFINISHED = 1, 2, 3
_MS = 1000
_MOST_LATE_MS = 20.0
"""Lateness of the sender above which its times say little of the services."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        names = asyncio.run(_voices(args.url))
        plans = _plans(args, names)
        finished = asyncio.run(_sweep(args, plans, names[: args.voices]))
    except (BenchmarkError, OSError, httpx.HTTPError) as error:
        print(f"end_to_end: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(table([read_run(path) for path in sorted(args.out.glob(f"*{RUN_SUFFIX}"))], args.voices), end="")
    if len(finished) < len(plans):
        print(f"{len(plans) - len(finished)} runs are left: start the same command again")
        return EXIT_UNFINISHED
    return EXIT_FAILURES if any(not r.is_ok for run in finished for r in run.result.records) else 0


def table(runs: Sequence[FinishedRun], voices: int) -> str:
    """Return one row a run, and a warning for each in which this process kept requests waiting."""
    rows = [HEAD, *(_row(run) for run in runs)]
    heading = (
        f"{voices} voices; gaps: requests whose playback ran dry, started at the first sample; late: sent after due\n"
    )
    late = [
        f"{run.name}: this process sent 1 % of the requests more than {late_ms:.0f} ms late, so the times are "
        "its own as well; measure from a faster host\n"
        for run in runs
        if (late_ms := _late_ms(run)) > _MOST_LATE_MS
    ]
    return heading + aligned_table(rows) + "".join(late)


async def _sweep(args: argparse.Namespace, plans: Sequence[RunPlan], known: Sequence[str]) -> list[FinishedRun]:
    sweep = Sweep(args.url, args.out, args.timeout_s)
    begun_s, finished = time.monotonic(), []
    todo = [plan for plan in plans if not sweep.has(plan)]
    if todo and not args.no_warm_up:
        failures = await sweep.warm_up(warm_up_bursts(args.warm_up_burst), known)
        if failures:
            raise BenchmarkError(f"{len(failures)} requests of the warm-up failed, the first with {failures[0]}")
    if todo:
        note_environment(args)
    for plan in plans:
        if sweep.has(plan):
            finished.append(read_run(args.out / f"{plan.name}{RUN_SUFFIX}"))
        elif time.monotonic() - begun_s < args.limit_s:
            finished.append(await sweep.run(plan))
            print("  ".join(_row(finished[-1])), flush=True)
    return finished


def note_environment(args: argparse.Namespace) -> None:
    """Write where the runs of this directory are made."""
    environment = describe_environment(vars(args), args.commit)
    write_json(args.out / ENVIRONMENT_FILE, {"setting": json.loads(args.setting), "environment": environment})


async def _voices(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as client:
        answer = await client.get("/v1/audio/voices")
        answer.raise_for_status()
        names: list[str] = answer.json()["voices"]
        return names


def _plans(args: argparse.Namespace, names: Sequence[str]) -> list[RunPlan]:
    if len(names) < args.voices + args.unseen:
        got = f"the gateway has {len(names)} voices, expected {args.voices} and {args.unseen} unseen ones"
        raise BenchmarkError(f"{got}; make them with `cosydit checkpoint make-random --numbered-voices N`")
    known, unseen = list(names[: args.voices]), list(names[args.voices : args.voices + args.unseen])
    load = SweepLoad(tuple(args.closed), tuple(args.open), args.open_s, args.requests_a_caller, tuple(args.audible))
    plans = load.plans(known)
    return [*plans, unseen_run(unseen)] if unseen else plans


def _row(run: FinishedRun) -> tuple[str, ...]:
    summary: dict[str, Any] = run.summary
    ttfa = summary["ttfa_s"] or {}
    times = [f"{ttfa[point] * _MS:.1f}" if ttfa else "-" for point in ("p50", "p95", "p99")]
    underrun = summary["underruns"][START_BUFFERS_S.index(0.0)]
    counts = (str(summary["requests"]), str(summary["failures"]))
    gaps = (str(underrun["requests"]), str(underrun["of_requests"]))
    return (run.name, *counts, *times, *gaps, f"{summary['audio_s_per_s']:.1f}", f"{_late_ms(run):.1f}")


def _late_ms(run: FinishedRun) -> float:
    """Return the 99th percentile of the time from when a request was due to when it was sent."""
    return percentile([record.dispatch_s for record in run.result.records], 99) * _MS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end", description=__doc__, allow_abbrev=False)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="URL of the gateway (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="directory for the runs' samples")
    parser.add_argument("--closed", type=int, nargs="*", default=[1, 4, 10, 16, 32, 64, 128], help="numbers of callers")
    parser.add_argument(
        "--open", type=float, nargs="*", default=[5, 10, 20, 32], help="rates in requests a second (Poisson)"
    )
    audible = "rates in requests a second (Poisson), timed from dispatch to the first audible sample as tts_bench does"
    parser.add_argument("--audible", type=float, nargs="*", default=[], help=audible)
    add_run_lengths(parser)
    parser.add_argument(
        "--voices", type=int, default=64, help="number of voices in use, known before (default %(default)s)"
    )
    parser.add_argument("--unseen", type=int, default=20, help="number of voices never used before, one request each")
    parser.add_argument(
        "--warm-up-burst", type=int, default=128, help="requests of the warm-up's largest burst (default %(default)s)"
    )
    parser.add_argument("--no-warm-up", action="store_true", help="skip the warm-up: the services are warm already")
    parser.add_argument(
        "--limit-s", type=float, default=480.0, help="seconds after which no run starts (default %(default)s)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=120.0, help="longest silence of the server in seconds (default %(default)s)"
    )
    parser.add_argument("--setting", default="{}", help="JSON that describes what is served, kept with the samples")
    parser.add_argument("--commit", default=None, help="commit of the code that runs (default: as git says)")
    return parser


def add_run_lengths(parser: argparse.ArgumentParser) -> None:
    """Add how long the runs of a sweep are."""
    parser.add_argument(
        "--open-s", type=float, default=OPEN_S, help="seconds of arrivals in an open loop (default %(default)s)"
    )
    parser.add_argument(
        "--requests-a-caller",
        type=int,
        default=REQUESTS_A_CALLER,
        help="requests of each caller in a closed loop (default %(default)s)",
    )


if __name__ == "__main__":
    exempt_startup_objects()
    sys.exit(main())
