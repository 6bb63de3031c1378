"""Runs a batch as its options say, and writes what became of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cosydit.batch.ledger import RESULTS_FILE, Ledger
from cosydit.batch.pipeline import BatchPipeline
from cosydit.batch.services import open_services
from cosydit.batch.types import BatchPlan, BatchReport, Failure
from cosydit.bench.report import write_json, write_jsonl
from cosydit.bench.types import BadRow, BenchmarkError, InputRow, SpeechInput
from servicekit.clock import SystemClock

SUMMARY_FILE, FAILURES_FILE = "summary.json", "failures.jsonl"
WATCHED_PAUSE_S, LOGGED_PAUSE_S = 0.1, 30.0
"""Seconds between two updates of the progress line: on a terminal, and in a log."""


def run_batch(
    args: argparse.Namespace, plan: BatchPlan, rows: Sequence[InputRow], environment: dict[str, Any]
) -> BatchReport:
    """Speak what is not done yet; results, failures and summary go to the output directory.

    Raises:
        BenchmarkError: another run works there, or a service is not ready.
        ServiceStartError, Token2WavError, LLMServiceError: a service or checkpoint can't start.
    """
    utts, out = {row.utt for row in rows if isinstance(row, SpeechInput)}, args.output_dir
    pause_s = WATCHED_PAUSE_S if sys.stderr.isatty() else LOGGED_PAUSE_S
    bar = tqdm(total=len(rows), unit="text", dynamic_ncols=True, mininterval=pause_s, maxinterval=pause_s)

    def on_row(report: BatchReport) -> None:
        bar.set_postfix(failed=len(report.failures), audio_s=round(report.audio_s, 1), refresh=False)
        bar.update()

    report = BatchReport(len(rows), on_row)
    with bar, Ledger(out, args.format, utts) as ledger:
        if todo := still_to_do(rows, ledger, report):
            asyncio.run(_speak(args, plan, ledger, todo, report))
        write_jsonl(out / FAILURES_FILE, map(asdict, report.failures))
        write_json(out / SUMMARY_FILE, {**asdict(report), "rtf": report.rtf, "environment": environment})
    return report


def still_to_do(rows: Sequence[InputRow], ledger: Ledger, report: BatchReport) -> list[SpeechInput]:
    """Return the rows that can be spoken and are not; the others are settled in the report."""
    todo: list[SpeechInput] = []
    for row in rows:
        try:
            if isinstance(row, BadRow):
                raise BenchmarkError(row.reason)
            if ledger.is_done(row.utt):
                report.skip()
            else:
                todo.append(row)
        except BenchmarkError as error:
            report.fail(Failure(row.utt, "input", str(error)))
    return todo


def summary_text(report: BatchReport, output_dir: Path) -> str:
    """Return what a person wants to know of a batch."""
    rtf = "-" if report.rtf is None else f"{report.rtf:.4f} ({1 / report.rtf:.1f} x real time)"
    busy = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in report.stage_busy_s.items())
    counts = f"done before: {report.done_before}, done now: {report.done}, failed: {len(report.failures)}"
    lines = [
        f"rows: {report.rows}, {counts}",
        f"voices: {report.voices} in {report.voices_s:.2f} s, before everything else",
        f"audio: {report.audio_s:.2f} s in {report.wall_s:.2f} s, RTF {rtf}",
        f"stages, busy: {busy}",
        *(f"FAILED {failure.utt} in {failure.stage}: {failure.reason}" for failure in report.failures),
        f"results in {output_dir / RESULTS_FILE}",
    ]
    return "\n".join(lines)


async def _speak(
    args: argparse.Namespace, plan: BatchPlan, ledger: Ledger, todo: Sequence[SpeechInput], report: BatchReport
) -> None:
    clock = SystemClock()
    async with open_services(args, plan, clock) as services:
        await BatchPipeline(*services, ledger, plan, report, clock).run(todo)
