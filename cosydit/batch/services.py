"""Opens the two services of a batch: clients of running ones, or services of its own, closed with the batch."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from cosydit.batch.llm import SegmentedLM, WholeAnswerClient
from cosydit.batch.token2wav import EngineStage, TritonStage
from cosydit.batch.types import BatchPlan, BatchServices, BatchSettings, LLMSettings, Token2WavSettings, Token2WavStage
from cosydit.bench.types import BenchmarkError
from cosydit.stack.host import served_form
from cosydit.stack.process import ServiceProcess, ServiceSpec
from cosydit.stack.stack import default_work_dir
from gateway.llm.wire import LLMWire
from gateway.speech.prosody_carry import CarryLimits
from gateway.text import Normalization, TextOptions, load_text_front_end
from llm_service.prompt import LengthLimits
from llm_service.speech_bounds import load_speech_bounds
from llm_service.text_encoder import load_text_encoder
from servicekit.checkpoint_file import find_declaration
from servicekit.clock import Clock
from token2wav_service.contract import CHUNK_SIZES_TOKENS

LLM_LOG_FILE = "llm_service.log"
_LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def open_services(settings: BatchSettings, clock: Clock) -> AsyncIterator[BatchServices]:
    """Open both services, and close them on leaving.

    Raises:
        BenchmarkError: the LLM service does not answer.
        ServiceStartError, Token2WavError, LLMServiceError, ValueError: a service or checkpoint can't start.
    """
    async with (
        _open_llm(settings.llm, settings.plan, settings.output_dir, clock) as llm,
        _open_token2wav(settings.token2wav, settings.plan, clock) as token2wav,
    ):
        yield BatchServices(_segmented(llm, settings.llm), token2wav)


def _segmented(llm: WholeAnswerClient, settings: LLMSettings) -> SegmentedLM:
    bounds = load_speech_bounds(settings.model_dir)
    normalization = Normalization.ON if settings.is_normalized else Normalization.OFF
    front_end = load_text_front_end(bounds.segment_letters, find_declaration(settings.model_dir))
    return SegmentedLM(llm, front_end, TextOptions(normalization=normalization), CarryLimits.within(bounds))


@asynccontextmanager
async def _open_llm(
    settings: LLMSettings, plan: BatchPlan, log_dir: Path, clock: Clock
) -> AsyncIterator[WholeAnswerClient]:
    limits = LengthLimits(max_speech_tokens=settings.max_speech_tokens)
    wire = LLMWire(load_text_encoder(settings.model_dir), settings.backend, settings.form, limits)
    with _llm_url(settings, plan, log_dir) as url:
        client = WholeAnswerClient(url, wire, settings.model, settings.answer_timeout_s, clock)
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
    served = settings.engine_dir or served_form(settings.model_dir, settings.backend.value, default_work_dir())
    port = _free_port()
    url = f"http://{_LOOPBACK}:{port}"
    spec = ServiceSpec(
        "llm_service", _llm_command(settings, served, plan, port), f"{url}/health", log_dir / LLM_LOG_FILE
    )
    with ServiceProcess(spec) as service:
        service.wait_ready(settings.ready_timeout_s)
        yield url


def _llm_command(settings: LLMSettings, served: Path, plan: BatchPlan, port: int) -> list[str]:
    command = [sys.executable, "-m", "llm_service", "--backend", settings.backend.value, "--port", str(port)]
    command += ["--model-dir", str(served)]
    command += ["--tokenizer-dir", str(settings.model_dir), "--max-batch-size", str(plan.batch_size)]
    if settings.kv_cache_free_gpu_memory_fraction is not None:
        command += ["--kv-cache-free-gpu-memory-fraction", str(settings.kv_cache_free_gpu_memory_fraction)]
    for name, value in settings.service.items():
        command += [f"--{name.replace('_', '-')}", value]
    return command


@asynccontextmanager
async def _open_token2wav(settings: Token2WavSettings, plan: BatchPlan, clock: Clock) -> AsyncIterator[Token2WavStage]:
    stage = _token2wav_stage(settings, plan, clock)
    try:
        yield stage
    finally:
        await stage.close()


def _token2wav_stage(settings: Token2WavSettings, plan: BatchPlan, clock: Clock) -> Token2WavStage:
    if settings.url is not None:
        return TritonStage(settings.url, settings.chunk_tokens or CHUNK_SIZES_TOKENS[-1])
    from token2wav_service.build import build_engine
    from token2wav_service.config import Token2WavConfig
    from token2wav_service.offline import best_chunk_tokens

    size = str(plan.token2wav_batch_size)
    named = {"max_batch_size": size, **settings.engine, "max_streams": size, "model_dir": str(settings.model_dir)}
    config = Token2WavConfig.from_mapping(named)
    return EngineStage(build_engine(config, clock), settings.chunk_tokens or best_chunk_tokens(config))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
