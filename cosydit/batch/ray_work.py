"""Works a batch on several machines: Ray Data hands rows to workers, each of which is a whole pipeline of its own.

Workers write no files: audio comes back encoded, and the ledger stays where the batch was started. Rows whose worker
ended before it had answered are given to another one, once and one by one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from cosydit.batch.ledger import Ledger, encode_audio
from cosydit.batch.pipeline import BatchPipeline, OnRow, fail
from cosydit.batch.types import BatchReport, BatchServices, BatchSettings, Failure, RaySettings
from cosydit.bench.types import BenchmarkError, SpeechInput
from gateway.core import FloatArray
from servicekit.clock import Clock, SystemClock
from servicekit.extras import install_command

logger = logging.getLogger(__name__)

LOCAL = "local"
_ROW, _OUTCOME = "row", "outcome"
OpenServices = Callable[[BatchSettings, Clock], AbstractAsyncContextManager[BatchServices]]


@dataclass(frozen=True)
class SpokenRow:
    """An utterance as it comes back from a worker."""

    result: Mapping[str, Any]
    """The utterance's line of results.jsonl."""
    encoded: bytes
    """The utterance's audio file."""


@dataclass(frozen=True)
class WorkerAnswer:
    """The outcomes of the rows that a worker was given together."""

    spoken: tuple[SpokenRow, ...]
    report: BatchReport


class Workers(Protocol):
    """Spreads rows over workers."""

    def map(self, rows: Sequence[SpeechInput], rows_per_task: int) -> Iterator[WorkerAnswer]:
        """Yield answers as they come; rows whose worker ended are in none."""
        ...


def work_on_ray(
    settings: BatchSettings, ledger: Ledger, todo: Sequence[SpeechInput], report: BatchReport, on_row: OnRow
) -> None:
    """Speak every row on the workers of a Ray cluster.

    Raises:
        BenchmarkError: Ray is not installed, or there is no such cluster.
    """
    from cosydit.batch.services import open_services

    clock = SystemClock()
    with open_ray(settings, open_services) as (workers, count):
        began_s = clock.now()
        spread(workers, _rows_per_task(settings, len(todo), count), ledger, todo, report, on_row)
        report.wall_s += clock.now() - began_s


def spread(
    workers: Workers,
    rows_per_task: int,
    ledger: Ledger,
    todo: Sequence[SpeechInput],
    report: BatchReport,
    on_row: OnRow,
) -> None:
    """Have every row spoken; those that no worker answered for are tried once more, then they have failed."""
    missing = _settle(workers.map(todo, rows_per_task), ledger, todo, report, on_row)
    if not missing:
        return
    report.retried += [row.utt for row in missing]
    logger.warning("a worker ended before it had answered; once more, one by one: %s", report.retried)
    for row in _settle(workers.map(missing, 1), ledger, missing, report, on_row):
        reason = "its worker ended twice before it had answered; see Ray's log, and try the row without --ray"
        fail(report, Failure(row.utt, "worker", reason))
        on_row(report)


@contextmanager
def open_ray(settings: BatchSettings, open_services: OpenServices) -> Iterator[tuple[Workers, int]]:
    """Connect to a cluster, or start one; gives the workers and how many there are.

    Args:
        settings: with `ray`.
        open_services: what each worker opens; must be a module's function, since workers import it.

    Raises:
        BenchmarkError: Ray is not installed, or there is no such cluster.
    """
    try:
        ray: Any = import_module("ray")
        import_module("ray.data")
    except ImportError as error:
        raise BenchmarkError(f"--ray needs: {install_command('ray')} ({error})") from error
    assert settings.ray is not None
    try:
        ray.init(log_to_driver=False, **_cluster(settings.ray))
    except ConnectionError as error:
        got = f"no Ray cluster answers at {settings.ray.address!r} ({error})"
        raise BenchmarkError(f"{got}; start one with `ray start --head`, or give --ray {LOCAL}") from error
    try:
        # A lost block does not end the batch: `spread` says which rows were in it.
        ray.data.DataContext.get_current().max_errored_blocks = -1
        ray.data.DataContext.get_current().enable_progress_bars = False
        count = settings.ray.workers or sum(node["Alive"] for node in ray.nodes())
        yield _RayWorkers(ray, settings, count, open_services), count
    finally:
        ray.shutdown()


class BatchWorker:
    """One worker: opens its services once, then speaks whatever rows it is given."""

    def __init__(self, settings: BatchSettings, open_services: OpenServices) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._loop = asyncio.new_event_loop()
        # The process owns the services: a Ray worker gets no chance to stop them.
        self._opened = open_services(settings, self._clock)
        self._services = self._loop.run_until_complete(self._opened.__aenter__())

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Speak pickled rows; returns one pickled `WorkerAnswer`."""
        rows = [pickle.loads(row) for row in batch[_ROW]]  # noqa: S301  # of our own run
        report, sink = BatchReport(len(rows)), _MemorySink(self._settings.audio_format)
        services, plan = self._services, self._settings.plan
        pipeline = BatchPipeline(services.llm, services.token2wav, sink, plan, self._clock)
        self._loop.run_until_complete(pipeline.run(rows, report, lambda report: None))
        return {_OUTCOME: np.array([pickle.dumps(WorkerAnswer(tuple(sink.spoken), report))], dtype=object)}


class _MemorySink:
    """Keeps what a worker has spoken."""

    def __init__(self, audio_format: str) -> None:
        self._format = audio_format
        self._encoded: dict[str, bytes] = {}
        self.spoken: list[SpokenRow] = []

    def write_audio(self, utt: str, samples: FloatArray) -> str:
        self._encoded[utt] = encode_audio(samples, self._format)
        return f"{utt}.{self._format}"

    def append(self, result: Mapping[str, Any]) -> None:
        self.spoken.append(SpokenRow(result, self._encoded.pop(result["utt"])))


class _RayWorkers:
    """`Workers` on Ray Data."""

    def __init__(self, ray: Any, settings: BatchSettings, count: int, open_services: OpenServices) -> None:
        self._ray = ray
        self._settings = settings
        self._count = count
        self._open_services = open_services

    def map(self, rows: Sequence[SpeechInput], rows_per_task: int) -> Iterator[WorkerAnswer]:
        """See `Workers.map`."""
        tasks = math.ceil(len(rows) / rows_per_task)
        items = [{_ROW: pickle.dumps(row)} for row in rows]
        data = self._ray.data.from_items(items, override_num_blocks=tasks).map_batches(
            BatchWorker,
            fn_constructor_args=(self._settings, self._open_services),
            batch_size=rows_per_task,
            compute=self._ray.data.ActorPoolStrategy(size=min(self._count, tasks), max_tasks_in_flight_per_actor=1),
            num_gpus=_gpus(self._settings),
            max_restarts=-1,
            max_task_retries=0,
        )
        for item in data.iter_rows():
            yield pickle.loads(item[_OUTCOME])  # noqa: S301  # of our own run


def _settle(
    answers: Iterator[WorkerAnswer], ledger: Ledger, rows: Sequence[SpeechInput], report: BatchReport, on_row: OnRow
) -> list[SpeechInput]:
    """Write what came back; returns the rows of which nothing did."""
    missing = {row.utt: row for row in rows}
    for answer in answers:
        for spoken in answer.spoken:
            utt = spoken.result["utt"]
            ledger.write_encoded(utt, spoken.encoded)
            ledger.append(spoken.result)
            del missing[utt]
            report.done += 1
            report.audio_s += spoken.result["audio_s"]
            on_row(report)
        for failure in answer.report.failures:
            fail(report, failure)
            del missing[failure.utt]
            on_row(report)
        _add_times(report, answer.report)
    return list(missing.values())


def _add_times(report: BatchReport, of_worker: BatchReport) -> None:
    """Add a worker's times, which may overlap those of others."""
    report.voices += of_worker.voices
    report.voices_s += of_worker.voices_s
    for stage, busy_s in of_worker.stage_busy_s.items():
        report.stage_busy_s[stage] = report.stage_busy_s.get(stage, 0.0) + busy_s


def _rows_per_task(settings: BatchSettings, rows: int, workers: int) -> int:
    """Return enough rows to keep a worker's stages busy, but no more than its share."""
    assert settings.ray is not None
    chosen = settings.ray.rows_per_task or settings.plan.utterances_ahead
    return max(1, min(chosen, math.ceil(rows / workers)))


def _cluster(settings: RaySettings) -> dict[str, Any]:
    """Return what `ray.init` is told of the cluster."""
    if settings.address != LOCAL:
        return {"address": settings.address}
    # Ray's CPUs are only counted. Those of workers that have just ended come back late, so there are some for others.
    return {"num_cpus": 2 * (settings.workers or 1), "include_dashboard": False}


def _gpus(settings: BatchSettings) -> int:
    return 1 if settings.token2wav.engine.get("device", "cpu").startswith("cuda") else 0
