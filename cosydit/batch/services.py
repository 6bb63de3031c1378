"""Opens the two services of a batch: clients of running ones, or services of its own, closed with the batch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from cosydit.batch.llm import SegmentedLM, WholeAnswerClient
from cosydit.batch.pipeline import read_prompt
from cosydit.batch.types import (
    BatchPlan,
    BatchServices,
    BatchSettings,
    LLMSettings,
    Token2WavSettings,
    Token2WavStage,
    TokenisedUtterance,
)
from cosydit.bench.types import BenchmarkError
from cosydit.stack.host import served_form
from cosydit.stack.process import ServiceProcess, ServiceSpec
from cosydit.stack.stack import default_work_dir
from gateway.chunking.chunker import TokenChunk
from gateway.core import FloatArray, RegisteredVoice
from gateway.errors import VoiceEvictedError
from gateway.llm.wire import LLMWire
from gateway.speech.prosody_carry import CarryLimits
from gateway.text import Normalization, TextOptions, load_text_front_end
from gateway.token2wav.client import Token2WavClient
from llm_service.prompt import LengthLimits
from llm_service.speech_bounds import load_speech_bounds
from llm_service.text_encoder import load_text_encoder
from servicekit.checkpoint_file import find_declaration
from servicekit.clock import Clock
from token2wav_service.contract import CHUNK_SIZES_TOKENS
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import InvalidPromptError
from token2wav_service.offline import OfflineUtterance, cut_chunks, synthesize_all
from token2wav_service.serving.process.server import free_ports
from token2wav_service.types import StreamOptions, VoicePrompt

LLM_LOG_FILE = "llm_service.log"
LLM_TIMEOUT_S = 600.0
"""Longest start of a service, and longest wait for one answer."""


@asynccontextmanager
async def open_services(settings: BatchSettings, clock: Clock) -> AsyncIterator[BatchServices]:
    """Open both services, and close them on leaving.

    Raises:
        BenchmarkError: the LLM service does not answer.
        ServiceStartError, Token2WavError, LLMServiceError, ValueError: a service or checkpoint can't start.
    """
    async with _open_llm(settings.llm, settings.plan, settings.output_dir, clock) as llm:
        stage = _token2wav_stage(settings.token2wav, settings.plan, clock)
        try:
            yield BatchServices(llm, stage)
        finally:
            await stage.close()


@asynccontextmanager
async def _open_llm(settings: LLMSettings, plan: BatchPlan, log_dir: Path, clock: Clock) -> AsyncIterator[SegmentedLM]:
    limits = LengthLimits(max_speech_tokens=settings.max_speech_tokens)
    wire = LLMWire(load_text_encoder(settings.model_dir), settings.backend, settings.form, limits)
    bounds = load_speech_bounds(settings.model_dir)
    front_end = load_text_front_end(bounds.segment_letters, find_declaration(settings.model_dir))
    text = TextOptions(normalization=Normalization.ON if settings.is_normalized else Normalization.OFF)
    with _llm_url(settings, plan, log_dir) as url:
        client = WholeAnswerClient(url, wire, settings.model, LLM_TIMEOUT_S, clock)
        try:
            if not await client.is_ready():
                raise BenchmarkError(f"no LLM service answers at {url}/health; start it, or leave --llm-url out")
            yield SegmentedLM(client, front_end, text, CarryLimits.within(bounds))
        finally:
            await client.close()


@contextmanager
def _llm_url(settings: LLMSettings, plan: BatchPlan, log_dir: Path) -> Iterator[str]:
    """Give the service's address; one that is started here is stopped on leaving."""
    if settings.url is not None:
        yield settings.url
        return
    served = settings.engine_dir or served_form(settings.model_dir, settings.backend.value, default_work_dir())
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "llm_service", "--backend", settings.backend.value, "--port", str(port)]
    command += ["--model-dir", str(served)]
    command += ["--tokenizer-dir", str(settings.model_dir), "--max-batch-size", str(plan.batch_size)]
    if settings.kv_cache_free_gpu_memory_fraction is not None:
        command += ["--kv-cache-free-gpu-memory-fraction", str(settings.kv_cache_free_gpu_memory_fraction)]
    for name, value in settings.service.items():
        command += [f"--{name.replace('_', '-')}", value]
    url = f"http://127.0.0.1:{port}"
    with ServiceProcess(ServiceSpec("llm_service", command, f"{url}/health", log_dir / LLM_LOG_FILE)) as service:
        service.wait_ready(LLM_TIMEOUT_S)
        yield url


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


class EngineStage:
    """Drives an engine of this process until all utterances handed over have finished."""

    def __init__(self, engine: Token2WavEngine, chunk_tokens: int) -> None:
        """Keep the engine; nothing else may use it."""
        self._engine = engine
        self._chunk_tokens = chunk_tokens
        # A thread of its own, so that the next batch does not wait for the files of the one before.
        self._thread = ThreadPoolExecutor(1, "token2wav")

    async def make_voice(self, samples: FloatArray) -> RegisteredVoice:
        """See `Token2WavStage.make_voice`."""
        features = await asyncio.to_thread(self._engine.voices.register, VoicePrompt(samples))
        return RegisteredVoice(features.voice_id, tuple(features.prompt_tokens.tolist()))

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """See `Token2WavStage.speak`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._speak, utterances)

    async def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        spoken = synthesize_all(self._engine, map(_offline, utterances), self._chunk_tokens)
        outcomes = {each.name: each.outcome for each in spoken}
        return [outcomes[each.input.utt] for each in utterances]


class TritonStage:
    """Sends whole utterances to a served model; its scheduler makes the batches."""

    def __init__(self, url: str, chunk_tokens: int) -> None:
        """Connect lazily to `url` (host:port of Triton's gRPC service)."""
        self._client = Token2WavClient(url)
        self._chunk_tokens = chunk_tokens

    async def make_voice(self, samples: FloatArray) -> RegisteredVoice:
        """See `Token2WavStage.make_voice`."""
        return await self._client.register_voice(samples)

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """See `Token2WavStage.speak`."""
        return await asyncio.gather(*map(self._speak_one, utterances))

    async def close(self) -> None:
        """Drop the connection."""
        await self._client.close()

    async def _speak_one(self, utterance: TokenisedUtterance) -> FloatArray | Exception:
        try:
            try:
                return await self._stream(utterance)
            except VoiceEvictedError:
                # NOTE: making it again right before the stream opens leaves no time to lose it.
                await self.make_voice(await asyncio.to_thread(read_prompt, utterance.voice.prompt))
                return await self._stream(utterance)
        except Exception as error:  # the row's failure, whatever it was
            return error

    async def _stream(self, utterance: TokenisedUtterance) -> FloatArray:
        cuts = cut_chunks(utterance.token_ids, self._chunk_tokens)
        async with self._client.open_stream(utterance.voice.voice_id, utterance.seed) as stream:
            pushes = []
            for index, token_ids in enumerate(cuts):
                chunk = TokenChunk(index, index * self._chunk_tokens, token_ids, index == len(cuts) - 1)
                pushes.append(stream.push(chunk))
            spoken = [await push for push in pushes]
        return np.concatenate([chunk.samples for chunk in spoken])


def _offline(utterance: TokenisedUtterance) -> OfflineUtterance:
    voice, options = utterance.voice, StreamOptions(utterance.seed)
    load = partial(_load_prompt, voice.prompt)
    return OfflineUtterance(utterance.input.utt, utterance.token_ids, load, options, voice.voice_id)


def _load_prompt(prompt: Path | bytes) -> VoicePrompt:
    try:
        return VoicePrompt(read_prompt(prompt))
    except OSError as error:
        raise InvalidPromptError(f"the prompt was read before and can't be read again: {error}") from error
