"""Offline batch synthesis: a list of texts and voices in, audio files and results.jsonl out; resumes where it stopped.

`python -m benchmarks.offline_batch`, or `cosydit batch`. Every backend is reached as an HTTP LLM service: a running one
(--llm-url) or one that is started for the batch. --figures keeps the run's raw times and what is computed from them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from cosydit.batch.options import add_options, read_rows, read_settings

if TYPE_CHECKING:
    from cosydit.batch.types import BatchReport

EXIT_FAILURES = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Run the batch; return 0, 1 if any row failed, 2 if it could not run."""
    from cosydit.batch.run import run_batch, summary_text
    from cosydit.bench.environment import describe_environment
    from cosydit.bench.types import BenchmarkError
    from cosydit.stack.process import ServiceStartError
    from llm_service.errors import LLMServiceError
    from token2wav_service.errors import Token2WavError

    arguments = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
    signal.signal(signal.SIGTERM, _interrupt)  # so that a service started here is stopped
    try:
        rows = read_rows(args)
        environment = describe_environment(arguments)
        report = run_batch(read_settings(args), rows, environment)
        print(summary_text(report, args.output_dir))
        if args.figures is not None:
            _write_figures(args, report, environment)
    except (BenchmarkError, ServiceStartError, LLMServiceError, Token2WavError, ValueError, OSError) as error:
        print(f"batch: {error}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_FAILURES if report.failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline_batch", description=__doc__, allow_abbrev=False)
    add_options(parser)
    try:
        return run(parser.parse_args(argv))
    except KeyboardInterrupt:
        print("batch: interrupted; run it again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED


def _write_figures(args: argparse.Namespace, report: BatchReport, environment: dict[str, Any]) -> None:
    from cosydit.batch.figures import compute_figures, raw_samples
    from cosydit.batch.ledger import RESULTS_FILE
    from cosydit.bench.report import aligned_table, write_json

    raw = raw_samples(args.output_dir / RESULTS_FILE, report)
    figures = compute_figures(raw)
    environment["git_commit"] = environment["git_commit"] or args.commit
    setting = json.loads(args.setting)
    write_json(args.figures, {"figures": figures, "setting": setting, "environment": environment, "raw": raw})
    print(aligned_table([["figure", "value"], *([name, f"{value:.4g}"] for name, value in figures.items())]), end="")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
