"""Replicas of both services that do as a test says, and the routed services over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import (
    GatewayError,
    LLMUnavailableError,
    Token2WavBusyError,
    Token2WavUnavailableError,
    VoiceEvictedError,
)
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.discovery import Places
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.replica import LoadReport, RoutingSettings
from gateway.token2wav.replica import ReplicaStream, Settle, VoiceFileCache
from gateway.token2wav.routed import RoutedToken2Wav
from servicekit.clock import Clock, SystemClock
from token2wav_service.contract import ServerStatus

SAMPLES_PER_TOKEN = 4
QUICK = RoutingSettings(interval_s=0.02, admission_wait_s=0.3, failover_s=1.0, restart_wait_s=1.0)
WAIT_S = 5.0


async def until(condition: object, what: str = "") -> None:
    """Wait for a callable to be true."""
    assert callable(condition)
    for _ in range(int(WAIT_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{what or condition} did not happen")


class ScriptedStream(ReplicaStream):
    """Answers each chunk with samples that tell voice seed, chunk and position; `hold` keeps answers back."""

    def __init__(self, owner: ScriptedToken2Wav, stream_id: str, seed: int) -> None:
        self.owner = owner
        self.stream_id = stream_id
        self.seed = seed
        self.chunks: list[TokenChunk] = []
        self.held: list[tuple[TokenChunk, Settle]] = []
        self.error: GatewayError | None = None

    def send(self, chunk: TokenChunk, settle: Settle) -> None:
        self.chunks.append(chunk)
        self.held.append((chunk, settle))
        self.answer()

    def answer(self, force: int = 0) -> None:
        """Answer what may be answered, and `force` chunks more."""
        while self.held:
            chunk, settle = self.held[0]
            if self.owner.poison is not None and self.owner.poison in chunk.token_ids:
                self.error = self.error or self.owner.poison_error
            if self.error is None and self.owner.answers <= chunk.index and force <= 0:
                return
            force -= 1
            self.held.pop(0)
            settle(self.error or AudioChunk(chunk.index, audio_of(chunk, self.seed), chunk.is_last))

    def die(self, error: GatewayError) -> None:
        self.error = error
        self.answer()


def audio_of(chunk: TokenChunk, seed: int) -> FloatArray:
    """What any replica makes of a chunk; the numbers of samples differ from chunk to chunk."""
    count = SAMPLES_PER_TOKEN * len(chunk.token_ids) + chunk.index % 3
    return (np.arange(count) + 1000 * chunk.index + 100_000 * seed).astype(np.float32)


@dataclass
class ScriptedToken2Wav:
    """One replica."""

    address: str
    slots: int = 4
    answers: int = 1_000_000
    """Chunks of a stream that are answered at once; the others wait."""
    poison: int | None = None
    poison_error: GatewayError = field(default_factory=lambda: Token2WavUnavailableError("poisoned"))
    is_dead: bool = False
    is_draining: bool = False
    model: str = "m1"
    step_s: float | None = None
    import_error: GatewayError | None = None
    forgets: int = 0
    """Imported voices that are gone at once, as after a restart."""
    register_error: GatewayError | None = None
    register_gate: asyncio.Event | None = None
    open_error: GatewayError | None = None
    open_s: float = 0.0
    export_s: float = 0.0
    steps: int = 0
    hop_multiple: int = 1
    voices: set[str] = field(default_factory=set)
    registered: list[bytes | FloatArray] = field(default_factory=list)
    imported: list[bytes] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)
    open: set[ScriptedStream] = field(default_factory=set)
    opened_total: int = 0
    is_closed: bool = False

    def _check(self) -> None:
        if self.is_dead:
            raise Token2WavUnavailableError(f"{self.address} can't be reached")

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        await asyncio.sleep(0)
        self._check()
        if self.register_gate is not None:
            await self.register_gate.wait()
            if self.is_closed:
                raise asyncio.CancelledError  # as gRPC does to calls of a closed channel
        if self.register_error is not None:
            raise self.register_error
        self.registered.append(audio)
        voice_id = f"voice-of-{bytes(audio).decode()}"  # type: ignore[arg-type]
        self.voices.add(voice_id)
        return RegisteredVoice(voice_id, (1, 2))

    async def export_voice(self, voice_id: str) -> bytes:
        if self.export_s:
            await asyncio.sleep(self.export_s)
        self._check()
        if voice_id not in self.voices:
            raise VoiceEvictedError(voice_id)
        return f"{self.model}/{voice_id}".encode()

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        await asyncio.sleep(0)
        self._check()
        if self.import_error is not None:
            raise self.import_error
        self.imported.append(voice_file)
        name = f"file-{voice_file.decode()}"
        if self.forgets > 0:
            self.forgets -= 1
        else:
            self.voices.add(name)
        return RegisteredVoice(name, (1, 2))

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = 10, caller_has_share: bool = False
    ) -> AsyncIterator[ScriptedStream]:
        await asyncio.sleep(self.open_s)
        self._check()
        if self.open_error is not None:
            raise self.open_error
        if voice_id not in self.voices:
            raise VoiceEvictedError(f"{voice_id} is not cached")
        if len(self.open) >= self.slots:
            raise Token2WavBusyError(f"{self.slots} streams are open")
        self.opened_total += 1
        stream = ScriptedStream(self, f"{self.address}#{self.opened_total}", seed)
        self.streams.append(stream)
        self.open.add(stream)
        try:
            yield stream
        finally:
            self.open.discard(stream)

    async def status(self) -> ServerStatus:
        await asyncio.sleep(0)
        self._check()
        self.steps += self.step_s is not None
        return ServerStatus(self.slots, len(self.open), self.steps, self.step_s, self.is_draining, self.hop_multiple)

    async def is_ready(self) -> bool:
        return not self.is_dead

    async def close(self) -> None:
        self.is_closed = True

    def die(self) -> None:
        """Break every stream, as a killed process does."""
        self.is_dead = True
        for stream in list(self.open):
            stream.die(Token2WavUnavailableError(f"{self.address} went away"))


@asynccontextmanager
async def _running(router: RoutedToken2Wav | RoutedSpeechLM, is_busy: Callable[[], bool]) -> AsyncIterator[None]:
    """Run a router until the context is left; then nothing may be left of any stream."""
    router.start()
    try:
        await router.is_ready()
        yield
        await until(lambda: not is_busy() and not any(status.open_streams for status in router.snapshot()), "the end")
    finally:
        await router.close()


@asynccontextmanager
async def routed(
    *replicas: ScriptedToken2Wav,
    settings: RoutingSettings = QUICK,
    clock: Clock | None = None,
    voice_file_bytes: int = 1_000_000,
) -> AsyncIterator[RoutedToken2Wav]:
    """Route over scripted replicas, all of them probed once."""
    by_address = {replica.address: replica for replica in replicas}
    clock = clock or SystemClock()
    fleet = Fleet(TOKEN2WAV, settings, clock)
    cache = VoiceFileCache(voice_file_bytes)
    router = RoutedToken2Wav(fleet, Places(tuple(by_address)), by_address.__getitem__, clock, cache)
    async with _running(router, lambda: any(replica.open for replica in replicas)):
        yield router


@dataclass
class ScriptedLLM:
    """One replica: counts on from the tokens it is given, up to `until_token`, and breaks where it is told to."""

    address: str
    until_token: int = 20
    breaks_after: int | None = None
    error: GatewayError | None = None
    finish_reason: str = "stop"
    is_well: bool = True
    is_dead: bool = False
    gate: asyncio.Event | None = None
    utterances: list[Utterance] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    running: int = 0
    is_closed: bool = False
    continues_exactly: bool = False

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        await asyncio.sleep(0)
        self.utterances.append(utterance)
        self.seeds.append(seed)
        self.running += 1
        try:
            if self.is_dead:
                raise LLMUnavailableError(f"{self.address} can't be reached")
            begin = len(utterance.spoken_tokens)
            for count, token in enumerate(range(begin, self.until_token)):
                if count == self.breaks_after and self.error is not None:
                    raise self.error
                if self.gate is not None:
                    await self.gate.wait()
                await asyncio.sleep(0)
                yield SpeechTokenDelta((token,))
            yield SpeechTokenDelta((), self.finish_reason)
        finally:
            self.running -= 1

    async def probe(self) -> LoadReport:
        if self.is_dead:
            raise LLMUnavailableError(f"{self.address} can't be reached")
        return LoadReport(is_draining=not self.is_well)

    async def close(self) -> None:
        self.is_closed = True


@asynccontextmanager
async def routed_llm(
    *replicas: ScriptedLLM, settings: RoutingSettings = QUICK, clock: Clock | None = None
) -> AsyncIterator[RoutedSpeechLM]:
    """Route over scripted LLMs, all of them probed once."""
    by_address = {replica.address: replica for replica in replicas}
    clock = clock or SystemClock()
    router = RoutedSpeechLM(Fleet(LLM, settings, clock), Places(tuple(by_address)), by_address.__getitem__, clock)
    async with _running(router, lambda: any(llm.running for llm in replicas if isinstance(llm, ScriptedLLM))):
        yield router


def chunks(count: int, is_ended: bool = True) -> list[TokenChunk]:
    """Cut chunks of different sizes."""
    return [
        TokenChunk(index, 10 * index, tuple(range(index, index + 5 + index % 2)), is_ended and index == count - 1)
        for index in range(count)
    ]
