"""Runs the streaming benchmark: opens the door, warms up, loads, writes the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cosydit.bench.doors import HttpDoor, PreparedRequest, TritonDoor
from cosydit.bench.inputs import read_prompt
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import summarize
from cosydit.bench.report import (
    RESULTS_FILE,
    SAMPLES_FILE,
    TABLE_FILE,
    summary_json,
    summary_table,
    write_json,
    write_records,
    write_text,
)
from cosydit.bench.types import BenchmarkError, LoadResult, RequestRecord, SpeechInput
from gateway.core import FloatArray
from servicekit.clock import SystemClock
from token2wav_service.errors import InvalidPromptError


@dataclass(frozen=True)
class BenchSettings:
    """What is measured, and where the results go."""

    open_door: Callable[[], HttpDoor | TritonDoor]
    """Opens the door under test in the running event loop."""
    title: str
    """Name of the door and of the load, for the results."""
    same_chunk_s: float
    """A piece of audio that comes sooner than this after the one before belongs to its chunk."""
    plan: LoadPlan
    log_dir: Path


def prepare_jobs(inputs: Sequence[SpeechInput]) -> list[PreparedRequest]:
    """Decode every prompt before anything is measured; equal prompts are decoded once.

    Raises:
        BenchmarkError: a prompt can't be read or used.
    """
    cache: dict[Path | bytes, FloatArray] = {}
    return [PreparedRequest(each, None if each.prompt is None else _reference(each, cache)) for each in inputs]


async def run_bench(
    settings: BenchSettings, jobs: Sequence[PreparedRequest], environment: dict[str, Any]
) -> tuple[str, LoadResult]:
    """Measure, and write results, raw samples and table under the log directory; return the table and the requests.

    Failed requests are counted, never raised.
    """
    failed = 0

    def advance(record: RequestRecord) -> None:
        nonlocal failed
        failed += not record.is_ok
        bar.set_postfix(failed=failed)
        bar.update()

    async with aclosing(settings.open_door()) as door:
        load = LoadGenerator(door.speak, lambda job: job.input.utt, SystemClock(), settings.same_chunk_s)
        warm_up = await load.run(jobs, LoadPlan(settings.plan.num_tasks, settings.plan.warm_up), lambda record: None)
        with tqdm(total=settings.plan.requests, unit="request") as bar:
            ran = await load.run(jobs, settings.plan, advance)
    result = LoadResult(ran.records, warm_up.records, ran.wall_s)
    return _write(settings, result, environment), result


def _write(settings: BenchSettings, result: LoadResult, environment: dict[str, Any]) -> str:
    summary = summarize(result)
    table = summary_table(settings.title, summary, result)
    report = {"title": settings.title, "summary": summary_json(summary), "environment": environment}
    report["warm_up"] = {"requests": len(result.warm_up), "failures": sum(not r.is_ok for r in result.warm_up)}
    write_json(settings.log_dir / RESULTS_FILE, report)
    write_records(settings.log_dir / SAMPLES_FILE, result)
    write_text(settings.log_dir / TABLE_FILE, table)
    return table


def _reference(each: SpeechInput, cache: dict[Path | bytes, FloatArray]) -> FloatArray:
    assert each.prompt is not None
    if each.prompt not in cache:
        try:
            cache[each.prompt] = read_prompt(each.prompt)
        except (OSError, InvalidPromptError) as error:
            raise BenchmarkError(f"{each.utt}: its prompt can't be used: {error}") from error
    return cache[each.prompt]
