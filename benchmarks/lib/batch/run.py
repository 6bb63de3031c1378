"""Runs a batch from its settings: opens the services, works the list, writes what became of it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.lib.batch.ledger import RESULTS_FILE, Ledger
from benchmarks.lib.batch.pipeline import BatchPipeline
from benchmarks.lib.batch.token2wav import EngineStage, TritonStage
from benchmarks.lib.batch.types import BatchPlan, BatchReport, Token2WavStage
from benchmarks.lib.report import write_json, write_text
from benchmarks.lib.types import BenchmarkError, InputRow, SpeechInput
from cosydit.clock import Clock, SystemClock
from cosydit.local.process import ServiceProcess, ServiceSpec
from gateway.llm_client import SpeechLMClient
from gateway.llm_wire import LLMBackend, LLMWire, PromptForm
from llm_service.text_encoder import load_text_encoder

LOG_FILE = "batch.log"
SUMMARY_FILE = "summary.json"
FAILURES_FILE = "failures.jsonl"
LLM_LOG_FILE = "llm_service.log"
_LOOPBACK = "127.0.0.1"
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True)
class LLMSettings:
    """Which LLM service is asked, or started."""

    backend: LLMBackend
    model_dir: Path
    """Hugging Face layout; its tokenizer counts text tokens."""
    url: str | None
    """A running service; None starts one."""
    model: str | None = None
    """Name to ask for; None takes the first listed."""
    form: PromptForm = PromptForm.TOKENS
    engine_dir: Path | None = None
    """trtllm: a built engine, for a service started here."""
    kv_cache_free_gpu_memory_fraction: float | None = None
    """For a service started here; None leaves its default."""
    service: Mapping[str, str] = field(default_factory=dict)
    """More settings of a service started here, by the names of `llm_service`."""
    ready_timeout_s: float = 600.0


@dataclass(frozen=True)
class Token2WavSettings:
    """Where speech tokens become audio."""

    model_dir: Path | None
    """In this process, from this checkpoint."""
    url: str | None
    """host:port of a running Triton's gRPC service. Exactly one of the two."""
    window_tokens: int
    engine: Mapping[str, str] = field(default_factory=dict)
    """Settings of the engine in this process, by name."""


@dataclass(frozen=True)
class BatchSettings:
    """A whole batch."""

    output_dir: Path
    audio_format: str
    plan: BatchPlan
    llm: LLMSettings
    token2wav: Token2WavSettings


def run_batch(settings: BatchSettings, rows: Sequence[InputRow], environment: dict[str, Any]) -> BatchReport:
    """Speak what is not done yet; results, failures, summary and log go to the output directory.

    Raises:
        BenchmarkError: another run works there, or a service is not ready.
        ServiceStartError, Token2WavError, LLMServiceError: a service or checkpoint can't start.
    """
    utts = {row.utt for row in rows if isinstance(row, SpeechInput)}
    with Ledger(settings.output_dir, settings.audio_format, utts) as ledger, _log_file(settings.output_dir / LOG_FILE):
        report = asyncio.run(_run(settings, ledger, rows))
        _write_report(settings.output_dir, report, environment)
    return report


def summary_text(report: BatchReport, output_dir: Path) -> str:
    """Return what a person wants to know of a batch."""
    rtf = "-" if report.rtf is None else f"{report.rtf:.4f}"
    busy = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in report.stage_busy_s.items())
    lines = [
        f"rows: {report.rows}, done before: {report.done_before}, done now: {report.done}, "
        f"failed: {len(report.failures)}",
        f"audio: {report.audio_s:.2f} s in {report.wall_s:.2f} s, RTF {rtf}",
        f"stages, busy: {busy}",
        *(f"FAILED {failure.utt} in {failure.stage}: {failure.reason}" for failure in report.failures),
        f"results in {output_dir / RESULTS_FILE}",
    ]
    return "\n".join(lines)


async def _run(settings: BatchSettings, ledger: Ledger, rows: Sequence[InputRow]) -> BatchReport:
    clock = SystemClock()
    async with (
        _open_llm(settings.llm, settings.plan, settings.output_dir, clock) as llm,
        _open_token2wav(settings.token2wav, settings.plan, clock) as token2wav,
    ):
        with tqdm(total=len(rows), unit="utt") as bar:
            return await BatchPipeline(llm, token2wav, ledger, settings.plan, clock).run(rows, _advance(bar))


@asynccontextmanager
async def _open_llm(
    settings: LLMSettings, plan: BatchPlan, log_dir: Path, clock: Clock
) -> AsyncIterator[SpeechLMClient]:
    wire = LLMWire(load_text_encoder(settings.model_dir), settings.backend, settings.form)
    with _llm_url(settings, plan, log_dir) as url:
        client = SpeechLMClient(url, wire, settings.model, clock=clock)
        try:
            if not await client.is_ready():
                raise BenchmarkError(f"no LLM service answers at {url}/health; start it, or leave --llm-url out")
            yield client
        finally:
            await client.close()


@contextmanager
def _llm_url(settings: LLMSettings, plan: BatchPlan, log_dir: Path) -> Iterator[str]:
    """Give the service's address; one that is started here is stopped on leaving."""
    if settings.url is not None:
        yield settings.url
        return
    port = _free_port()
    url = f"http://{_LOOPBACK}:{port}"
    command = [sys.executable, "-m", "llm_service", "--backend", settings.backend.value, "--port", str(port)]
    command += ["--model-dir", str(settings.engine_dir or settings.model_dir)]
    command += ["--tokenizer-dir", str(settings.model_dir), "--max-batch-size", str(plan.batch_size)]
    if settings.kv_cache_free_gpu_memory_fraction is not None:
        command += ["--kv-cache-free-gpu-memory-fraction", str(settings.kv_cache_free_gpu_memory_fraction)]
    for name, value in settings.service.items():
        command += [f"--{name.replace('_', '-')}", value]
    spec = ServiceSpec("llm_service", command, f"{url}/health", log_dir / LLM_LOG_FILE)
    with ServiceProcess(spec) as service:
        service.wait_ready(settings.ready_timeout_s)
        yield url


@asynccontextmanager
async def _open_token2wav(settings: Token2WavSettings, plan: BatchPlan, clock: Clock) -> AsyncIterator[Token2WavStage]:
    stage = _token2wav_stage(settings, plan, clock)
    try:
        yield stage
    finally:
        await stage.close()


def _token2wav_stage(settings: Token2WavSettings, plan: BatchPlan, clock: Clock) -> Token2WavStage:
    if settings.url is not None:
        return TritonStage(settings.url, settings.window_tokens)
    from token2wav_service.config import Token2WavConfig
    from token2wav_service.engine.build import build_engine

    size = str(plan.token2wav_batch_size)
    named = {**settings.engine, "max_batch_size": size, "max_streams": size, "model_dir": str(settings.model_dir)}
    return EngineStage(build_engine(Token2WavConfig.from_mapping(named), clock), settings.window_tokens)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Keep what the batch logs, whatever the command line shows."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    batch_logger = logging.getLogger("benchmarks.lib.batch")
    level = batch_logger.level
    batch_logger.addHandler(handler)
    batch_logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        batch_logger.setLevel(level)
        batch_logger.removeHandler(handler)
        handler.close()


def _write_report(output_dir: Path, report: BatchReport, environment: dict[str, Any]) -> None:
    lines = (json.dumps(asdict(failure), ensure_ascii=False) + "\n" for failure in report.failures)
    write_text(output_dir / FAILURES_FILE, "".join(lines))
    write_json(output_dir / SUMMARY_FILE, {**asdict(report), "rtf": report.rtf, "environment": environment})
    logging.getLogger(__name__).info("%s", summary_text(report, output_dir))


def _advance(bar: Any) -> Callable[[BatchReport], None]:
    def advance(report: BatchReport) -> None:
        bar.set_postfix(failed=len(report.failures), audio_s=round(report.audio_s, 1), refresh=False)
        bar.update()

    return advance


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
