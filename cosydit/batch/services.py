"""Opens the two services of a batch: clients of running ones, or services of its own, closed with the batch."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

from cosydit.batch.llm import SegmentedLM, WholeAnswerClient
from cosydit.batch.types import BatchPlan, BatchVoice, Complete, TokenisedUtterance
from cosydit.bench.inputs import read_prompt
from cosydit.bench.types import BenchmarkError
from cosydit.stack.host import served_form
from cosydit.stack.process import read_json, serving_llm
from cosydit.stack.stack import default_work_dir
from gateway.core import FloatArray
from gateway.llm.wire import LLMWire
from gateway.speech.prosody_carry import CarryLimits
from gateway.text import Normalization, TextOptions, load_text_front_end
from llm_service.config import LLMBackend
from llm_service.speech_bounds import load_speech_bounds
from llm_service.text_encoder import load_text_encoder
from servicekit.checkpoint_file import find_declaration
from servicekit.clock import Clock
from token2wav_service.build import build_engine
from token2wav_service.config import Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import InvalidPromptError
from token2wav_service.offline import OfflineUtterance, best_chunk_tokens, synthesize_all
from token2wav_service.types import StreamOptions, VoicePrompt

LLM_LOG_FILE = "llm_service.log"
LLM_TIMEOUT_S = 600.0
"""Longest start of a service, and longest wait for one answer."""


@asynccontextmanager
async def open_services(
    args: argparse.Namespace, plan: BatchPlan, clock: Clock
) -> AsyncIterator[tuple[Complete, EngineStage]]:
    """Open both services as `cosydit.batch.command` has completed the options, and close them on leaving.

    Raises:
        BenchmarkError: the LLM service does not answer.
        ServiceStartError, Token2WavError, LLMServiceError, ValueError: a service or checkpoint can't start.
    """
    llm_dir, size = args.llm_model_name_or_path, str(plan.token2wav_batch_size)
    wire = LLMWire(load_text_encoder(llm_dir), LLMBackend(args.backend), args.llm_max_speech_tokens)
    bounds = load_speech_bounds(llm_dir)
    front_end = load_text_front_end(bounds.segment_letters, find_declaration(llm_dir))
    text = TextOptions(normalization=Normalization.OFF if args.as_written else Normalization.ON)
    with _llm_url(args) as url:
        client = WholeAnswerClient(url, wire, args.openai_model_name or _first_model(url), LLM_TIMEOUT_S, clock)
        named = {"max_batch_size": size, **dict(args.token2wav_set), "max_streams": size}
        config = Token2WavConfig.from_mapping({**named, "model_dir": str(args.token2wav_path)})
        stage = EngineStage(build_engine(config, clock), args.chunk_tokens or best_chunk_tokens(config))
        try:
            yield SegmentedLM(client.complete, front_end, text, CarryLimits.within(bounds)).complete, stage
        finally:
            await stage.close()
            await client.close()


def _first_model(url: str) -> str:
    try:
        return str(read_json(f"{url}/v1/models")["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BenchmarkError(f"no LLM service answers at {url} ({error}); start it, or leave --llm-url out") from error


def _llm_url(args: argparse.Namespace) -> AbstractContextManager[str]:
    """Give the service's address; one that is started here is stopped on leaving."""
    if args.llm_url is not None:
        return nullcontext(str(args.llm_url))
    llm_dir, share = args.llm_model_name_or_path, args.kv_cache_free_gpu_memory_fraction
    options = {"tokenizer_dir": str(llm_dir), "max_batch_size": str(args.batch_size), **dict(args.llm_set)}
    if share is not None:
        options["kv_cache_free_gpu_memory_fraction"] = str(share)
    served = served_form(llm_dir, args.backend, default_work_dir())
    return serving_llm(args.backend, served, args.output_dir / LLM_LOG_FILE, LLM_TIMEOUT_S, **options)


class EngineStage:
    """Drives an engine of this process until all utterances handed over have finished."""

    def __init__(self, engine: Token2WavEngine, chunk_tokens: int) -> None:
        """Keep the engine; nothing else may use it."""
        self._engine = engine
        self._chunk_tokens = chunk_tokens
        # A thread of its own, so that the next batch does not wait for the files of the one before.
        self._thread = ThreadPoolExecutor(1, "token2wav")

    async def make_voice(self, prompt: Path | bytes) -> BatchVoice:
        """Compute a prompt's features, or find them in the cache.

        Raises:
            OSError, Token2WavError: the prompt can't be read or used.
        """
        samples = await asyncio.to_thread(read_prompt, prompt)
        features = await asyncio.to_thread(self._engine.voices.register, VoicePrompt(samples))
        return BatchVoice(features.voice_id, tuple(features.prompt_tokens.tolist()), prompt)

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """Make the audio of each, [N] float32 in +-1 at 24 kHz, or say why not; in the order given."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._speak, utterances)

    async def close(self) -> None:
        self._thread.shutdown()

    def _speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        spoken = synthesize_all(self._engine, map(_offline, utterances), self._chunk_tokens)
        outcomes = {each.name: each.outcome for each in spoken}
        return [outcomes[each.input.utt] for each in utterances]


def _offline(utterance: TokenisedUtterance) -> OfflineUtterance:
    voice, options = utterance.voice, StreamOptions(utterance.seed)
    load = partial(_load_prompt, voice.prompt)
    return OfflineUtterance(utterance.input.utt, utterance.token_ids, load, options, voice.voice_id)


def _load_prompt(prompt: Path | bytes) -> VoicePrompt:
    try:
        return VoicePrompt(read_prompt(prompt))
    except OSError as error:
        raise InvalidPromptError(f"the prompt was read before and can't be read again: {error}") from error
