"""Servers of a fleet, each at an address that stays while the process behind it comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from gateway import errors
from gateway.core import FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.routing.replica import LoadReport
from gateway.token2wav.replica import ReplicaStream
from lab.simulate.compute import SerialProcess
from lab.simulate.llm import ModelledLLM
from lab.simulate.token2wav import ModelledToken2Wav
from token2wav_service.contract import DEFAULT_PRIORITY, ServerStatus


class Token2WavServer:
    """One address; `up` starts a process there."""

    def __init__(self, address: str, make: Callable[[], ModelledToken2Wav]) -> None:
        """Begin with nobody there."""
        self.address = address
        self._make = make
        self._process: ModelledToken2Wav | None = None
        self.busy_s = 0.0
        """Seconds in steps, of all processes that are gone."""

    @property
    def process(self) -> ModelledToken2Wav:
        """Whoever is there.

        Raises:
            Token2WavUnavailableError: nobody.
        """
        if self._process is None:
            raise errors.Token2WavUnavailableError(f"token2wav at {self.address} refuses connections; try another")
        return self._process

    @property
    def open_streams(self) -> int:
        """Streams there now."""
        return len(self._process.engine.open_stream_ids()) if self._process is not None else 0

    @property
    def total_busy_s(self) -> float:
        """Seconds spent in steps so far."""
        return self.busy_s + (self._process.loop.busy_s if self._process is not None else 0.0)

    def up(self) -> None:
        """Start a fresh process: no voices, no streams."""
        self._process = self._make()
        self._process.start()

    def kill(self) -> None:
        """Lose the process."""
        self.process.kill()
        self._leave()

    async def restart(self, grace_s: float, start_s: float) -> None:
        """Drain the process, and start another one in its place."""
        await self.process.drain(grace_s)
        self._leave()
        await asyncio.sleep(start_s)
        self.up()

    def _leave(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        self.busy_s += process.loop.busy_s
        process.engine.check_integrity()


class Token2WavLink:
    """A gateway's client of one address (`gateway.routing`'s `Token2WavReplicaClient`)."""

    def __init__(self, server: Token2WavServer, gateway: SerialProcess) -> None:
        """Connect to nobody yet; `gateway` is the process whose client it is."""
        self._server = server
        self._gateway = gateway

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav.register_voice`."""
        return await self._server.process.register_voice(audio)

    async def export_voice(self, voice_id: str) -> bytes:
        """See `VoiceMaker.export_voice`."""
        return await self._server.process.export_voice(voice_id)

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        """See `VoiceMaker.import_voice`."""
        return await self._server.process.import_voice(voice_file)

    def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY, caller_has_share: bool = False
    ) -> AbstractAsyncContextManager[ReplicaStream]:
        """See `Token2Wav.open_stream`."""
        return self._server.process.open_stream(voice_id, seed, priority, self._gateway, caller_has_share)

    async def status(self) -> ServerStatus:
        """See `Token2WavClient.status`."""
        return await self._server.process.status()

    async def is_ready(self) -> bool:
        """Tell whether anybody is there."""
        return await self._server.process.is_ready()

    async def close(self) -> None:
        """Nothing is held."""


class LLMLink:
    """A gateway's client of one LLM (`gateway.routing`'s `LLMReplicaClient`)."""

    continues_exactly = False

    def __init__(self, server: ModelledLLM, gateway: SerialProcess) -> None:
        """Connect to nobody yet; `gateway` is the process whose client it is."""
        self._server = server
        self._gateway = gateway

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM.generate`."""
        async with aclosing(self._server.generate(utterance, self._gateway)) as deltas:
            async for delta in deltas:
                yield delta

    async def is_ready(self) -> bool:
        """Tell whether it serves."""
        return await self._server.is_ready()

    async def probe(self) -> LoadReport:
        """See `SpeechLMClient.probe`."""
        return await self._server.probe()

    async def close(self) -> None:
        """Nothing is held."""
