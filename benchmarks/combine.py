"""One row a run: `python -m benchmarks.combine DIR...` puts the results of several streaming benchmarks side by side.

Used where one benchmark runs per server. Reads what `benchmarks.streaming_grpc` wrote; measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosydit.bench.report import RESULTS_FILE, aligned_table

HEAD = ("run", "requests", "failed", "ttfa p50 ms", "ttfa p99 ms", "total p50 ms", "audio s/s")
_MS = 1000


def combine(directories: Sequence[Path]) -> str:
    """Return the table of these runs, in their order, with the sum of what adds up in the last row.

    Raises:
        OSError: a directory has no results.
        ValueError: a file holds something else.
    """
    summaries = [_read_summary(directory) for directory in directories]
    rows = [_row(directory.name, summary) for directory, summary in zip(directories, summaries, strict=True)]
    requests, failures = (sum(summary[name] for summary in summaries) for name in ("requests", "failures"))
    throughput = sum(summary["audio_s_per_s"] for summary in summaries)
    return aligned_table([HEAD, *rows, ("all", str(requests), str(failures), "", "", "", f"{throughput:.3f}")])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.combine", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, help="directories that finished runs had as --log-dir")
    args = parser.parse_args(argv)
    try:
        print(combine(args.directories), end="")
    except (OSError, ValueError) as error:
        print(f"combine: {error}", file=sys.stderr)
        return 1
    return 0


def _read_summary(directory: Path) -> dict[str, Any]:
    path = directory / RESULTS_FILE
    content = json.loads(path.read_text("utf-8"))
    try:
        summary: dict[str, Any] = content["summary"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} has no summary; expected the results of benchmarks.streaming_grpc") from error
    return summary


def _row(name: str, summary: dict[str, Any]) -> tuple[str, ...]:
    times = [_milliseconds(summary, "ttfa_s", "p50"), _milliseconds(summary, "ttfa_s", "p99")]
    times.append(_milliseconds(summary, "total_s", "p50"))
    return (name, str(summary["requests"]), str(summary["failures"]), *times, f"{summary['audio_s_per_s']:.3f}")


def _milliseconds(summary: dict[str, Any], name: str, point: str) -> str:
    distribution = summary[name]
    return "-" if distribution is None else f"{distribution[point] * _MS:.1f}"


if __name__ == "__main__":
    sys.exit(main())
