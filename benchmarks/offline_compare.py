"""Batched against one by one: the same rows spoken both ways by the same services, in turns, in one run.

`python -m benchmarks.offline_compare`, options as of `benchmarks.offline_batch`. One by one means that an utterance
is begun when the one before it lies on disk. Voices and the services' start are in neither time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.offline_batch import add_figure_options, write_figures
from cosydit.batch.command import find_checkpoint, read_rows, read_settings
from cosydit.bench.types import count

if TYPE_CHECKING:
    from cosydit.batch.services import EngineStage
    from cosydit.batch.types import BatchPlan, BatchReport, BatchSettings, Complete
    from cosydit.bench.types import SpeechInput

DEFAULT_TURNS = 3
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    from cosydit.bench.inputs import require_all_good
    from cosydit.bench.types import BenchmarkError
    from cosydit.stack.host import find_host

    args = _parser().parse_args(argv)
    try:
        find_checkpoint(args)
        raw = asyncio.run(
            compare(read_settings(args, find_host(args.device)), require_all_good(read_rows(args)), args.turns)
        )
    except (BenchmarkError, ValueError, OSError) as error:
        print(f"offline_compare: {error}", file=sys.stderr)
        return EXIT_USAGE
    write_figures(args, compute_figures(raw), raw)
    return 0


async def compare(settings: BatchSettings, rows: Sequence[SpeechInput], turns: int) -> dict[str, list[float]]:
    """Return wall time and seconds of audio of every turn, for both ways.

    Raises:
        BenchmarkError: a row failed.
    """
    from cosydit.batch.services import open_services
    from servicekit.clock import SystemClock

    raw: dict[str, list[float]] = {name: [] for name in ("one_by_one_s", "batched_s", "audio_s")}
    alone = replace(settings.plan, batch_size=1, token2wav_batch_size=1, warm_up=0)
    async with open_services(settings, SystemClock()) as services:
        await _speak(services, settings, settings.plan, settings.output_dir / "warm up", [rows])
        for turn in range(turns):
            directory = settings.output_dir / f"turn {turn}"
            single = await _speak(services, settings, alone, directory / "one by one", [[row] for row in rows])
            batched = await _speak(services, settings, settings.plan, directory / "batched", [rows])
            raw["one_by_one_s"].append(single.wall_s)
            raw["batched_s"].append(batched.wall_s)
            raw["audio_s"].append(batched.audio_s)
    return raw


def compute_figures(raw: dict[str, list[float]]) -> dict[str, float]:
    """Return how many times faster batches are, the median of all turns, and both real-time factors."""
    turns = list(zip(raw["one_by_one_s"], raw["batched_s"], raw["audio_s"], strict=True))
    return {
        "speedup": median(single / batched for single, batched, _ in turns),
        "rtf_one_by_one": median(single / audio for single, _, audio in turns),
        "rtf_batched": median(batched / audio for _, batched, audio in turns),
    }


async def _speak(
    services: tuple[Complete, EngineStage],
    settings: BatchSettings,
    plan: BatchPlan,
    directory: Path,
    parts: Sequence[Sequence[SpeechInput]],
) -> BatchReport:
    """Speak part after part into an empty directory."""
    from cosydit.batch.ledger import Ledger
    from cosydit.batch.pipeline import BatchPipeline
    from cosydit.batch.types import BatchReport
    from cosydit.bench.types import BenchmarkError
    from servicekit.clock import SystemClock

    if directory.exists():
        raise BenchmarkError(f"{directory} is there already; give an --output-dir that is empty")
    report = BatchReport(sum(map(len, parts)))
    with Ledger(directory, settings.audio_format, {row.utt for part in parts for row in part}) as ledger:
        for rows in parts:
            pipeline = BatchPipeline(*services, ledger, plan, SystemClock())
            await pipeline.run(rows, report, lambda _: None)
    if report.failures:
        raise BenchmarkError(f"{len(report.failures)} rows failed, the first with {report.failures[0].reason}")
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offline_compare", description=__doc__, allow_abbrev=False
    )
    add_figure_options(parser)
    parser.add_argument(
        "--turns", type=count, default=DEFAULT_TURNS, help="number of turns of both ways (default %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
