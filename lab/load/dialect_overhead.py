"""What each dialect adds to the time to first byte: `python -m lab.load.dialect_overhead --help`.

The pipeline runs over services that answer at once. Servers and clients share one process and one event loop, so that
a client's own work is in the figures. Requests come one at a time, the dialects taking turns.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from cosydit.bench.metrics import percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import count
from gateway.audio import load_codecs
from lab.load.dialects import DIALECTS, Request, ask_pipeline, instant_host
from lab.load.dialects_streaming import STREAMING_DIALECTS

PIPELINE = "pipeline alone"
_MS = 1000
_MEDIAN = 50
_TAIL = 90


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.load.dialect_overhead", description=__doc__)
    parser.add_argument("--requests", type=count, default=50, help="number of requests for each dialect")
    parser.add_argument(
        "--warm-up", type=count, default=5, help="number of requests for each dialect that do not count"
    )
    parser.add_argument("--out", type=Path, help="JSON to write")
    args = parser.parse_args(argv)
    samples_s = asyncio.run(measure(args.requests, args.warm_up))
    print(overhead_table(samples_s), end="")
    if args.out is not None:
        write_json(args.out, {"first_byte_s": samples_s, "environment": describe_environment(vars(args))})
    return 0


async def measure(requests: int, warm_up: int) -> dict[str, list[float]]:
    """Return the seconds to first byte of every request, by dialect; the first entry is the pipeline's own."""
    load_codecs()
    async with AsyncExitStack() as stack:
        executor = stack.enter_context(ThreadPoolExecutor(1))
        host = instant_host(Path(__file__), executor)
        asking: dict[str, Request] = {PIPELINE: partial(ask_pipeline, host)}
        for dialect in (*DIALECTS, *STREAMING_DIALECTS):
            asking[dialect.name] = await stack.enter_async_context(dialect.serve(host))
        samples_s: dict[str, list[float]] = {name: [] for name in asking}
        for _ in range(warm_up + requests):
            for name, ask in asking.items():
                samples_s[name].append(await ask())
    return {name: samples[warm_up:] for name, samples in samples_s.items()}


def overhead_table(samples_s: Mapping[str, Sequence[float]]) -> str:
    """Return what a person wants to see: medians, and how far they are over the pipeline's."""
    base_s = percentile(samples_s[PIPELINE], _MEDIAN)
    rows = [["time to first byte, ms", "n", "p50", "p90", "p50 over the pipeline"]]
    for name, values in samples_s.items():
        median_s = percentile(values, _MEDIAN)
        figures = [median_s, percentile(values, _TAIL), median_s - base_s]
        rows.append([name, str(len(values)), *(f"{figure * _MS:.2f}" for figure in figures)])
    return aligned_table(rows)


if __name__ == "__main__":
    sys.exit(main())
