"""`cosydit batch`: offline batch synthesis; a list of texts and voices in, audio files and results.jsonl out.

`python -m benchmarks.offline_batch` is the same. A run resumes where the one before it stopped. Every backend is
reached as an HTTP LLM service: a running one (--llm-url) or one that is started for the batch. --figures keeps the
run's raw times and what is computed from them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from cosydit.batch.options import add_options, find_checkpoint, read_rows, read_settings
from cosydit.batch.types import BatchReport
from cosydit.bench.types import BenchmarkError

if TYPE_CHECKING:
    from cosydit.batch.types import BatchReport, BatchSettings
    from cosydit.stack.host import Host

EXIT_FAILURES = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("batch", help="speak a whole list of texts into files; resumes where it stopped")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the batch; return 0, 1 if any row failed, 2 if it could not run."""
    from cosydit.batch.run import run_batch, summary_text
    from cosydit.bench.report import describe_environment
    from cosydit.bench.types import BenchmarkError
    from cosydit.stack.checkpoint.checkpoints import CheckpointMissingError
    from cosydit.stack.host import find_host
    from cosydit.stack.process import ServiceStartError
    from llm_service.errors import LLMServiceError
    from token2wav_service.errors import Token2WavError

    signal.signal(signal.SIGTERM, _interrupt)  # so that a service started here is stopped
    try:
        find_checkpoint(args)
        rows = read_rows(args)
        host = find_host(args.device)
        settings = read_settings(args, host)
        chosen = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
        environment = describe_environment(chosen)
        with _on_gpu(settings, host):
            report = run_batch(settings, rows, environment)
        print(summary_text(report, args.output_dir))
        if args.figures is not None:
            _write_figures(args, report, environment)
    except (
        BenchmarkError,
        CheckpointMissingError,
        ServiceStartError,
        LLMServiceError,
        Token2WavError,
        ValueError,
        OSError,
    ) as error:
        print(f"batch: {error}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_FAILURES if report.failures else 0


@contextmanager
def _on_gpu(settings: BatchSettings, host: Host) -> Iterator[None]:
    """Say what was chosen for a GPU, and have MPS while the context lasts if both parts run on it."""
    from cosydit.stack.mps import mps_running

    if not host.gpus:
        yield
        return
    with ExitStack() as stack:
        lines = _choice(settings, host)
        if settings.llm.url is None and settings.token2wav.url is None:
            lines.append(f"MPS       {stack.enter_context(mps_running(settings.output_dir, is_client=True)).note}")
        print("\n".join(lines), flush=True)
        yield


def _choice(settings: BatchSettings, host: Host) -> list[str]:
    from cosydit.stack.host import gpu_line

    llm, token2wav = settings.llm, settings.token2wav
    engine = " ".join(f"{name}={value}" for name, value in token2wav.engine.items())
    service = " ".join(f"{name}={value}" for name, value in llm.service.items())
    size, share = settings.plan.batch_size, llm.kv_cache_free_gpu_memory_fraction
    return [
        gpu_line(host),
        f"token2wav {token2wav.url or engine}, batch {settings.plan.token2wav_batch_size}    (change: --token2wav-set "
        "NAME=VALUE, --token2wav-batch-size)",
        f"LLM       {llm.backend.value} {llm.url or service}, batch {size}, memory share {share}    (change: "
        "--backend, --llm-set NAME=VALUE, --batch-size)",
    ]


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


RAW_COLUMNS = (
    "audio_s",
    "speech_tokens",
    "llm_began_s",
    "llm_s",
    "token2wav_began_s",
    "token2wav_s",
    "token2wav_batch",
    "write_s",
    "written_s",
)
"""Columns of a row of results.jsonl; times in seconds, counted from when the first utterance was begun."""


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
