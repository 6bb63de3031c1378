"""One token2wav server in virtual time: the real engine and scheduler behind the gateway's `Token2Wav` seam.

Its wire is a delay and its failures are what the real client would raise; see `costs` for what everything takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random

import numpy as np

from gateway import errors
from gateway.chunking.chunker import TokenChunk as CutChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice
from gateway.token2wav.replica import ReplicaStream, Settle
from lab.simulate.compute import Compute, SerialProcess
from lab.simulate.costs import CostModel
from lab.simulate.engine import ModelledExtractor, ModelledRunner, VirtualEngineLoop
from servicekit.clock import Clock
from token2wav_service import errors as engine_errors
from token2wav_service import types as engine_types
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import ServerStatus
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.features.prompt_models import voice_id_of
from token2wav_service.types import StreamOptions, StreamSummary, TokenChunk, VoicePrompt

MAX_BATCH_SIZE = 64
MAX_STREAMS = 400
VOICE_CACHE_BYTES = 20_000_000_000
MODEL_VERSION = "modelled"
_PROMPT_SAMPLES = 16_000
_DRAIN_POLL_S = 0.05


class ModelledToken2Wav:
    """One server; `start` it in a running loop."""

    def __init__(
        self,
        costs: CostModel,
        gpu: Compute,
        clock: Clock,
        max_streams: int = MAX_STREAMS,
        draw: Random | None = None,
    ) -> None:
        """Begin without voices or streams.

        Args:
            costs: what everything takes.
            gpu: where it computes.
            clock: the simulation's.
            max_streams: open at once at most.
            draw: of its steps' times; by default the same for every server.
        """
        self._costs, self._cost, self._clock = costs, costs.token2wav, clock
        runner = ModelledRunner(max_streams)
        config = Token2WavConfig(Path(), max_batch_size=MAX_BATCH_SIZE, max_streams=max_streams)
        voices = VoiceStore(ModelledExtractor(), runner, VOICE_CACHE_BYTES, VoiceModel(lambda: MODEL_VERSION))
        engine = Token2WavEngine(config, voices, runner, clock, is_realtime=True)
        self.loop = VirtualEngineLoop(engine, runner, self._cost, gpu, clock, draw or Random(0))
        self._streams: set[_ModelledStream] = set()
        self._voices_under_way = SerialProcess()
        self.is_up = self.is_draining = False

    @property
    def engine(self) -> Token2WavEngine:
        """The real one."""
        return self.loop.engine

    def start(self) -> None:
        """Begin to serve."""
        self.loop.start()
        self.is_up = True

    def kill(self) -> None:
        """Be gone at once, as a process that was killed: every caller's connection breaks."""
        self.is_up = False
        for stream in list(self._streams):
            stream.break_off()
        self.loop.stop()

    async def drain(self, grace_s: float) -> None:
        """Take no more streams, wait until those that are open have ended, but no longer than a grace, and stop."""
        self.is_draining = True
        ends_s = self._clock.now() + grace_s
        while self._streams and self._clock.now() < ends_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        self.kill()

    async def is_ready(self) -> bool:
        """Tell whether it serves."""
        return self.is_up

    async def status(self) -> ServerStatus:
        """Say how busy it is; see `Token2WavClient.status`."""
        await asyncio.sleep(self._cost.open_s)
        self._check_up()
        return replace(self.loop.status(), is_draining=self.is_draining)

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """Make a voice from anything that tells it from others; see `Token2Wav.register_voice`."""
        self._check_up()
        await asyncio.sleep(self._cost.open_s)
        prompt = _prompt(bytes(audio))
        voices = self.engine.voices
        if not self._knows(prompt):
            await self._voices_under_way.use(self._cost.voice_s)
        self._check_up()
        features = voices.register(prompt)
        return RegisteredVoice(features.voice_id, tuple(int(token) for token in features.prompt_tokens))

    async def export_voice(self, voice_id: str) -> bytes:
        """Return a voice's file; see `VoiceMaker.export_voice`."""
        await asyncio.sleep(self._cost.open_s)
        self._check_up()
        try:
            return self.engine.voices.export_file(voice_id)
        except engine_errors.Token2WavError as error:
            raise _gateway_error(error) from error

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        """Register a voice from its file; see `VoiceMaker.import_voice`."""
        await asyncio.sleep(self._cost.open_s)
        self._check_up()
        features = self.engine.voices.import_file(voice_file)
        return RegisteredVoice(features.voice_id, tuple(int(token) for token in features.prompt_tokens))

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int, gateway: SerialProcess, caller_has_share: bool = False
    ) -> AsyncIterator[_ModelledStream]:
        """Lease a stream to a gateway's process; see `Token2Wav.open_stream`."""
        self._check_up()
        await asyncio.sleep(self._cost.open_s)
        self._check_up()
        if self.is_draining:
            raise errors.Token2WavStoppingError("token2wav is stopping; try another replica")
        stream = _ModelledStream(
            self, gateway, voice_id, StreamOptions(seed, priority, caller_has_share=caller_has_share)
        )
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            stream.close()

    def push_later(self, chunk: TokenChunk, stream: _ModelledStream) -> None:
        """Have a chunk reach the engine after its way over the wire."""
        asyncio.get_running_loop().call_later(self._cost.push_s, stream.arrive, chunk)

    def answer_later(self, gateway: SerialProcess, deliver: partial[None]) -> None:
        """Have an answer reach the gateway's code when that process comes to it."""
        loop = asyncio.get_running_loop()
        loop.call_at(gateway.reserve(loop.time(), self._costs.gateway.chunk_s), deliver)

    def _knows(self, prompt: VoicePrompt) -> bool:
        voice_id, cache = voice_id_of(prompt.samples), self.engine.voices.cache
        try:
            cache.acquire(voice_id)
        except engine_errors.VoiceNotCachedError:
            return False
        cache.release(voice_id)
        return True

    def _check_up(self) -> None:
        if not self.is_up:
            raise errors.Token2WavUnavailableError("token2wav is gone; try another replica")


class _ModelledStream(ReplicaStream):
    """An open stream of the engine, as the gateway sees it."""

    def __init__(
        self, server: ModelledToken2Wav, gateway: SerialProcess, voice_id: str, options: StreamOptions
    ) -> None:
        self._server = server
        self._gateway = gateway
        self._waiting: dict[int, Settle] = {}
        self._failure: errors.GatewayError | None = None
        try:
            self.stream_id = server.loop.open_stream(voice_id, options, self._note_end)
        except engine_errors.Token2WavError as error:
            raise _gateway_error(error) from error

    def send(self, chunk: CutChunk, settle: Settle) -> None:
        if self._failure is not None:
            settle(self._failure)
            return
        self._waiting[chunk.index] = settle
        window = TokenChunk(self.stream_id, chunk.index, chunk.token_ids, chunk.is_last)
        self._server.push_later(window, self)

    def arrive(self, chunk: TokenChunk) -> None:
        """The engine's side of a push."""
        if self._failure is not None:
            return
        try:
            self._server.loop.push(chunk, self._note_result)
        except engine_errors.Token2WavError as error:
            self._fail(_gateway_error(error))

    def close(self) -> None:
        """Free the stream, whatever its state."""
        self._fail(errors.Token2WavInterruptedError(f"stream {self.stream_id} was closed before its audio came"))
        self._server.loop.abort(self.stream_id)

    def break_off(self) -> None:
        """The connection is gone."""
        self._fail(errors.Token2WavInterruptedError(f"stream {self.stream_id}: the connection broke"))

    def _note_result(self, outcome: engine_types.AudioChunk | engine_errors.Token2WavError) -> None:
        self._server.answer_later(self._gateway, partial(self._settle, outcome))

    def _settle(self, outcome: engine_types.AudioChunk | engine_errors.Token2WavError) -> None:
        if isinstance(outcome, engine_errors.Token2WavError):
            self._fail(_gateway_error(outcome))
            return
        if (settle := self._waiting.pop(outcome.index, None)) is not None:
            settle(AudioChunk(outcome.index, outcome.samples, outcome.is_last))

    def _note_end(self, summary: StreamSummary) -> None:
        """The engine's account of the stream; its answers have said it all."""

    def _fail(self, error: errors.GatewayError) -> None:
        self._failure = self._failure or error
        waiting, self._waiting = self._waiting, {}
        for settle in waiting.values():
            settle(self._failure)


def _gateway_error(error: engine_errors.Token2WavError) -> errors.GatewayError:
    """Return what the real client raises for an engine's error."""
    if isinstance(error, engine_errors.CapacityError):
        return errors.Token2WavBusyError(f"token2wav: {error}")
    if isinstance(error, engine_errors.VoiceNotCachedError):
        return errors.VoiceEvictedError(f"token2wav: {error}")
    if isinstance(error, engine_errors.EngineStoppedError):
        return errors.Token2WavUnavailableError(f"token2wav: {error}")
    if isinstance(error, (engine_errors.StreamNotFoundError, engine_errors.StreamAbortedError)):
        return errors.Token2WavInterruptedError(f"token2wav: {error}")
    return errors.Token2WavFailedError(f"token2wav: {error}")


@lru_cache(maxsize=1024)
def _prompt(name: bytes) -> VoicePrompt:
    """Return sound that is another for every name."""
    samples = np.random.default_rng(list(name)).uniform(-0.5, 0.5, _PROMPT_SAMPLES).astype(np.float32)
    return VoicePrompt(samples)
