"""Fakes of the gateway's neighbours: both services at their seams, the clock, and the events of an LLM's stream."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from gateway.audio import AudioFormat
from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.dialects.errors import shape_errors
from gateway.doors.http import DIALECT_ROUTES
from gateway.errors import GatewayError, Token2WavInterruptedError, VoiceEvictedError
from gateway.host import Host, HostLimits
from gateway.lexicons import LexiconBook
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.text import TextFrontEnd
from gateway.voices.registry import NamedVoice, VoiceRegistry
from llm_service.vocab import COSYVOICE2
from servicekit.checkpoint_file import CheckpointDeclaration
from servicekit.clock import Clock
from tests.virtual_time import ManualClock
from token2wav_service.contract import LOOKAHEAD_TOKENS, SAMPLES_PER_TOKEN

PROMPT_TOKENS = (7, 8, 9)
UNPACED = HostLimits(run_ahead_s=math.inf)
"""Audio goes out as fast as it is made."""


@dataclass
class FakeLLM:
    """Speaks scripted deltas; `gate` holds it back after the first `ungated` deltas."""

    deltas: list[SpeechTokenDelta]
    error: GatewayError | None = None
    gate: asyncio.Event | None = None
    ungated: int = 0
    ready: bool = True
    running: int = 0
    utterances: list[Utterance] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        self.utterances.append(utterance)
        self.seeds.append(seed)
        self.running += 1
        try:
            for index, delta in enumerate(self.deltas):
                if self.gate is not None and index >= self.ungated:
                    await self.gate.wait()
                await asyncio.sleep(0)
                yield delta
            if self.error is not None:
                raise self.error
        finally:
            self.running -= 1

    async def is_ready(self) -> bool:
        return self.ready


class FakeStream:
    """Answers each chunk with 960 samples a token, or fails at `fail_at`."""

    hop_multiple = 1

    def __init__(self, owner: FakeToken2Wav, stream_id: str) -> None:
        self._owner = owner
        self.stream_id = stream_id
        self.chunks: list[TokenChunk] = []
        self.pending: list[tuple[TokenChunk, asyncio.Future[AudioChunk]]] = []

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        future: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
        self.chunks.append(chunk)
        self.pending.append((chunk, future))
        if not self._owner.is_held:
            self.answer_all()
        return future

    def answer_all(self) -> None:
        for chunk, future in self.pending:
            if future.done():
                continue
            if self._owner.fail_at == chunk.index:
                future.set_exception(self._owner.failure)
                future.exception()
                continue
            spoken = len(chunk.token_ids) - (0 if chunk.is_last else LOOKAHEAD_TOKENS)
            samples = np.full(spoken * SAMPLES_PER_TOKEN, 0.5, np.float32)
            samples[: max(self._owner.silent_samples - chunk.start * SAMPLES_PER_TOKEN, 0)] = 0.0
            future.set_result(AudioChunk(chunk.index, samples, chunk.is_last))
        self.pending.clear()


@dataclass
class FakeToken2Wav:
    """Registers any voice; knows how many streams are open."""

    is_held: bool = False
    fail_at: int | None = None
    failure: GatewayError = field(default_factory=lambda: Token2WavInterruptedError("it died; try again"))
    open_failure: GatewayError | None = None
    ready: bool = True
    silent_samples: int = 0
    """With which every stream begins."""
    voices: set[str] = field(default_factory=set)
    registrations: list[bytes | FloatArray] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    open_streams: int = 0

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        self.registrations.append(audio)
        voice_id = f"voice-{len(self.registrations)}"
        self.voices.add(voice_id)
        return RegisteredVoice(voice_id, PROMPT_TOKENS)

    @asynccontextmanager
    async def open_stream(self, voice_id: str, seed: int, priority: int = 10) -> AsyncIterator[FakeStream]:
        if self.open_failure is not None:
            raise self.open_failure
        if voice_id not in self.voices:
            raise VoiceEvictedError(f"{voice_id} is not cached; register it")
        stream = FakeStream(self, f"stream-{len(self.streams)}")
        self.streams.append(stream)
        self.open_streams += 1
        try:
            yield stream
        finally:
            self.open_streams -= 1

    async def is_ready(self) -> bool:
        return self.ready


@dataclass
class Behind:
    """What stands behind a door."""

    llm: FakeLLM
    token2wav: FakeToken2Wav

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(500):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{self.llm.running} at the LLM, {self.token2wav.open_streams} streams")

    async def until_idle(self) -> None:
        await self.until(lambda: self.llm.running == 0 and self.token2wav.open_streams == 0)


def speech_deltas(count: int, per_delta: int = 1, finish_reason: str | None = "stop") -> list[SpeechTokenDelta]:
    """Script `count` tokens 0, 1, 2, ... and an end."""
    ids = [token % 6561 for token in range(count)]
    deltas = [SpeechTokenDelta(tuple(ids[at : at + per_delta])) for at in range(0, count, per_delta)]
    return [*deltas, SpeechTokenDelta((), finish_reason)]


def make_pipeline(
    llm: FakeLLM,
    token2wav: FakeToken2Wav,
    voices: list[NamedVoice],
    settings: PipelineSettings | None = None,
    front_end: TextFrontEnd | None = None,
) -> Speaker:
    """Put a speaker together from fakes."""
    return Speaker(llm, token2wav, VoiceRegistry(token2wav, voices), settings, ManualClock(), front_end=front_end)


class CharacterEncoder:
    """Stands for the tokenizer: one token a character."""

    vocabulary = COSYVOICE2

    def encode(self, text: str) -> list[int]:
        return [ord(character) % 1000 for character in text]


def make_host(
    pipeline: Speaker,
    voices: VoiceRegistry,
    executor: Executor | None = None,
    *,
    readiness: Readiness | None = None,
    clock: Clock | None = None,
    default_format: AudioFormat = AudioFormat.WAV,
    limits: HostLimits = UNPACED,
    declaration: CheckpointDeclaration | None = None,
    lexicons: LexiconBook | None = None,
) -> Host:
    """Put a host together; a test names the parts that it looks at."""
    return Host(
        pipeline=pipeline,
        voices=voices,
        readiness=readiness or Readiness(pipeline, FakeLLM([]), FakeToken2Wav(), "default"),
        clock=clock or ManualClock(),
        executor=executor or ThreadPoolExecutor(1),
        encode_text=CharacterEncoder().encode,
        default_format=default_format,
        limits=limits,
        declaration=declaration or CheckpointDeclaration(),
        lexicons=lexicons or LexiconBook({}),
    )


def app_of(host: Host, *others: BaseRoute) -> Starlette:
    """Return an application with every dialect over a host."""
    app = Starlette(routes=[*others, *DIALECT_ROUTES])
    app.state.host = host
    shape_errors(app)
    return app


def make_voices_host(voices: VoiceRegistry) -> Host:
    """Put a host together of which only the voices are asked."""
    return make_host(make_pipeline(FakeLLM([]), FakeToken2Wav(), []), voices)


def token_event(speech_ids: Iterable[int], finish_reason: str | None = None, extra: Iterable[int] = ()) -> bytes:
    """Write one event of /v1/completions; `extra` are LLM ids."""
    llm_ids = [COSYVOICE2.llm_id(speech_id) for speech_id in speech_ids] + list(extra)
    choice = {"index": 0, "text": "", "token_ids": llm_ids, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
