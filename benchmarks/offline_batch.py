"""Offline batch synthesis as a script: `python -m benchmarks.offline_batch`, as `cosydit batch`, and with --figures.

--figures keeps the run's raw times and what is computed from them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cosydit.batch.command import add_options, run
from cosydit.batch.ledger import RESULTS_FILE
from cosydit.batch.types import BatchReport
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import BenchmarkError

EXIT_INTERRUPTED = 130
RAW_COLUMNS = (
    *("audio_s", "speech_tokens", "llm_began_s", "llm_s", "token2wav_began_s", "token2wav_s", "token2wav_batch"),
    *("write_s", "written_s"),
)
"""Columns of a row of results.jsonl; times in seconds, counted from when the first utterance was begun."""


def add_figure_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the batch, and what is written of its times."""
    add_options(parser)
    figures = "JSON to write, with the run's raw times and the figures computed from them"
    parser.add_argument("--figures", type=Path, help=figures)
    parser.add_argument("--commit", help="commit of the code in --figures, where there is no git")
    parser.add_argument("--setting", default="{}", help="JSON that describes what is measured, written into --figures")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    name = "python -m benchmarks.offline_batch"
    parser = argparse.ArgumentParser(prog=name, description=__doc__, allow_abbrev=False)
    add_figure_options(parser)
    args = parser.parse_args(argv)
    try:
        return run(args, None if args.figures is None else partial(_keep, args))
    except KeyboardInterrupt:
        print("batch: interrupted; run it again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED


def _keep(args: argparse.Namespace, report: BatchReport) -> None:
    raw = raw_samples(args.output_dir / RESULTS_FILE, report)
    write_figures(args, compute_figures(raw), raw)


def write_figures(args: argparse.Namespace, figures: Mapping[str, float], raw: Mapping[str, Any]) -> None:
    """Print a run's figures, and write them to --figures."""
    if args.figures is not None:
        told = {"setting": json.loads(args.setting), "environment": describe_environment(vars(args), args.commit)}
        write_json(args.figures, {"figures": figures, **told, "raw": raw})
    print(aligned_table([["figure", "value"], *([name, f"{value:.4g}"] for name, value in figures.items())]), end="")


def raw_samples(results: Path, report: BatchReport) -> dict[str, Any]:
    """Return a run's rows as columns, and what is known of the run only.

    Raises:
        BenchmarkError: the run did not speak every row itself, or some rows failed.
        OSError: no results.
    """
    if report.done_before or report.failures or not report.done:
        raise BenchmarkError(
            f"figures need a run that speaks every row: of {report.rows}, {report.done_before} were done before and "
            f"{len(report.failures)} failed; give an empty --output-dir and rows that can be spoken"
        )
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    columns = {name: [row[name] for row in rows] for name in RAW_COLUMNS}
    return {"voices": report.voices, "voices_s": report.voices_s, "stage_busy_s": report.stage_busy_s, "rows": columns}


def compute_figures(raw: Mapping[str, Any]) -> dict[str, float]:
    """Compute the published figures.

    Returns:
        `rtf` is wall time from the first utterance begun to the last one written, over the audio made; voices are
        made ready before that and stand apart.
    """
    rows: Mapping[str, Sequence[float]] = raw["rows"]
    wall_s, audio_s = max(rows["written_s"]) - min(rows["llm_began_s"]), sum(rows["audio_s"])
    return {
        "rtf": wall_s / audio_s,
        "times_real_time": audio_s / wall_s,
        "utterances": len(rows["audio_s"]),
        "audio_s": audio_s,
        "wall_s": wall_s,
        "voices": raw["voices"],
        "voices_s": raw["voices_s"],
        "llm_busy_s": raw["stage_busy_s"]["llm"],
        "token2wav_busy_s": raw["stage_busy_s"]["token2wav"],
        "write_busy_s": raw["stage_busy_s"]["write"],
    }


if __name__ == "__main__":
    sys.exit(main())
