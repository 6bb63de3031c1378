"""Storms of requests on one gateway in virtual time, over services that make so much speech a second and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gateway.access.caller import Caller
from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.errors import GatewayError, LLMBusyError, OverloadedError, Token2WavBusyError
from gateway.lifecycle.gate import Gate
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.discovery import Places
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.replica import LoadReport, ReplicaState, RoutingSettings
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import Speaker
from gateway.token2wav.replica import ReplicaStream, Settle
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.registry import NamedVoice, VoiceRegistry
from lab.load.storm_doors import Heard, RefusedError
from servicekit.clock import Clock
from servicekit.stream_limit import StreamLimit, extra_streams, reserved_streams
from token2wav_service.contract import DEFAULT_PRIORITY, SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN, TOKEN_RATE_HZ, ServerStatus
from token2wav_service.engine.stream import PlaybackDeadline

TOKENS_A_PIECE = 4


class Worker:
    """Makes so many seconds of speech a second, one piece after the other in the order of asking."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self._turn = asyncio.Lock()

    async def make(self, tokens: int) -> None:
        async with self._turn:
            await asyncio.sleep(tokens / TOKEN_RATE_HZ / self.capacity)


class BatchingWorker(Worker):
    """Serves everybody at once, each at the speed that one alone gets: batches cost nothing."""

    async def make(self, tokens: int) -> None:
        await asyncio.sleep(tokens / TOKEN_RATE_HZ / self.capacity)


class Limited:
    """What both services do: admit as many streams as are served in time, as the real engines do."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self.limit = StreamLimit(max(1, slots - reserved_streams(slots)), clock)
        self._clock = clock
        self.open = self._extra = 0

    @contextmanager
    def admitted(self, refusal: type[GatewayError], has_streams: bool) -> Iterator[PlaybackDeadline]:
        is_extra = self.open >= self.limit.streams
        if is_extra and (has_streams or self._extra >= extra_streams(self.limit.streams)):
            raise refusal("full")
        self.open, self._extra, opened_s = self.open + 1, self._extra + is_extra, self._clock.now()
        try:
            yield PlaybackDeadline()
        finally:
            self.open, self._extra = self.open - 1, self._extra - is_extra
            self.limit.note_end(self._clock.now() - opened_s)

    def note(self, deadline: PlaybackDeadline, ordered_s: float, tokens: int) -> None:
        kept = deadline.deliver(ordered_s, self._clock.now(), tokens / TOKEN_RATE_HZ)
        assert kept is not None
        self.limit.note_piece(kept.slack_s, kept.room_s, tokens / TOKEN_RATE_HZ, self.open)


class BusyLLM(Limited):
    """Answers in turns of a few tokens each."""

    continues_exactly = False

    def __init__(self, worker: Worker, tokens: int, clock: Clock) -> None:
        super().__init__(1000, clock)
        self._worker = worker
        self._tokens = tokens

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        with self.admitted(LLMBusyError, utterance.priority == DEFAULT_PRIORITY) as deadline:
            ordered_s = self._clock.now()
            for first in range(0, self._tokens, TOKENS_A_PIECE):
                await self._worker.make(TOKENS_A_PIECE)
                self.note(deadline, ordered_s, TOKENS_A_PIECE)
                ordered_s = self._clock.now()
                yield SpeechTokenDelta(tuple(range(first, first + TOKENS_A_PIECE)))
            yield SpeechTokenDelta((), "stop")

    async def probe(self) -> LoadReport:
        return LoadReport(False, self.limit.streams, self.open, next_end_s=self.limit.next_end_s(self.open))

    async def close(self) -> None:
        pass


class _BusyStream(ReplicaStream):
    def __init__(self, service: BusyToken2Wav, deadline: PlaybackDeadline, stream_id: str) -> None:
        self._service, self._deadline = service, deadline
        self._last: asyncio.Future[AudioChunk] | None = None
        self.stream_id = stream_id

    def send(self, chunk: TokenChunk, settle: Settle) -> None:
        def note(done: asyncio.Future[AudioChunk]) -> None:
            if not done.cancelled():
                settle(done.exception() or done.result())

        self._last = asyncio.ensure_future(self._make(chunk, self._last))
        self._last.add_done_callback(note)

    async def _make(self, chunk: TokenChunk, before: asyncio.Future[AudioChunk] | None) -> AudioChunk:
        ordered_s = self._service.clock.now()
        if before is not None:
            await before
        await self._service.worker.make(len(chunk.token_ids))
        self._service.note(self._deadline, ordered_s, len(chunk.token_ids))
        samples = np.zeros(len(chunk.token_ids) * SAMPLES_PER_TOKEN, np.float32)
        return AudioChunk(chunk.index, samples, chunk.is_last)


class BusyToken2Wav(Limited):
    """Makes audio, one chunk after the other."""

    def __init__(self, worker: Worker, slots: int, clock: Clock) -> None:
        super().__init__(slots, clock)
        self.worker, self.clock = worker, clock
        self.opened = 0

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        return RegisteredVoice("anna", (1, 2))

    async def export_voice(self, voice_id: str) -> bytes:
        return b"anna"

    async def import_voice(self, voice_file: bytes) -> RegisteredVoice:
        return RegisteredVoice("anna", (1, 2))

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = 10, caller_has_share: bool = False
    ) -> AsyncIterator[_BusyStream]:
        with self.admitted(Token2WavBusyError, caller_has_share) as deadline:
            self.opened += 1
            yield _BusyStream(self, deadline, str(self.opened))

    async def status(self) -> ServerStatus:
        ends_s = self.limit.next_end_s(self.open)
        return ServerStatus(self.limit.streams, self.open, 0, None, is_draining=False, next_end_s=ends_s)

    async def is_ready(self) -> bool:
        return True

    async def close(self) -> None:
        pass


@dataclass
class Spoken:
    """What became of one request."""

    caller: str
    asked_s: float
    first_s: float | None = None
    """Until the first audio."""
    total_s: float | None = None
    retry_s: float | None = None
    """Set if it was refused."""
    error: GatewayError | None = None


_caller: ContextVar[str] = ContextVar("caller", default="")


@dataclass
class Storm:
    """One gateway before one LLM and one token2wav; as `stormy` opens it."""

    clock: Clock
    llm: BusyLLM
    token2wav: BusyToken2Wav
    gate: Gate
    routers: tuple[RoutedSpeechLM, RoutedToken2Wav]
    pipeline: Speaker
    spoken: list[Spoken] = field(default_factory=list)

    async def say(self, key: str, text: str, heard: Heard) -> None:
        """Have a text spoken, as `lab.load.storms` asks for it."""
        _caller.set(key)
        try:
            async for audio in self.pipeline.synthesize(SpeechRequest(text, "anna")):
                heard(len(audio.samples) / SAMPLE_RATE_HZ)
        except OverloadedError as error:
            raise RefusedError(error.retry_after_s) from error

    async def ask(self, caller: str = "") -> Spoken:
        """Have one text spoken."""
        _caller.set(caller)
        one = Spoken(caller, self.clock.now())
        self.spoken.append(one)
        try:
            async for audio in self.pipeline.synthesize(SpeechRequest("Hello.", "anna")):
                if one.first_s is None and len(audio.samples):
                    one.first_s = self.clock.now() - one.asked_s
            one.total_s = self.clock.now() - one.asked_s
        except OverloadedError as error:
            one.retry_s = error.retry_after_s
        except GatewayError as error:
            one.error = error
        return one

    async def arrive(self, times: int, every_s: float, caller: str = "") -> None:
        """Have texts asked for at a steady pace, whatever becomes of them, and wait for their ends."""
        asked = []
        for _ in range(times):
            asked.append(asyncio.create_task(self.ask(caller)))
            await asyncio.sleep(every_s)
        await asyncio.gather(*asked)

    @property
    def admitted(self) -> list[Spoken]:
        return [one for one in self.spoken if one.retry_s is None]

    @property
    def refused(self) -> list[Spoken]:
        return [one for one in self.spoken if one.retry_s is not None]

    def check(self) -> None:
        """See that all who were let in were spoken to their end, and that both services are well and free."""
        assert [one.error for one in self.admitted if one.error is not None] == []
        assert all(one.total_s is not None for one in self.admitted)
        assert (self.token2wav.open, self.gate.speaking, self.gate.waiting) == (0, 0, 0)
        for router in self.routers:
            (status,) = router.snapshot()
            assert (status.state, status.last_failure, status.failovers_total) == (ReplicaState.READY, "", 0)


@asynccontextmanager
async def stormy(
    clock: Clock,
    folder: Path,
    llm_capacity: float = 1000.0,
    token2wav_capacity: float = 1000.0,
    slots: int = 400,
    tokens: int = 200,
    settings: RoutingSettings | None = None,
    worker: type[Worker] = Worker,
) -> AsyncIterator[Storm]:
    """Open a gateway before services of so many seconds of speech a second."""
    settings = settings or RoutingSettings()
    (folder / "anna.wav").write_bytes(b"anna")
    llm = BusyLLM(worker(llm_capacity), tokens, clock)
    token2wav = BusyToken2Wav(worker(token2wav_capacity), slots, clock)

    def fleet(service: str) -> Fleet:
        return Fleet(service, settings, clock)

    llms = RoutedSpeechLM(fleet(LLM), Places(("l",)), lambda _: llm, clock)
    tokens2wav = RoutedToken2Wav(fleet(TOKEN2WAV), Places(("t",)), lambda _: token2wav, clock)
    gate = Gate(llms, tokens2wav, clock, lambda: Caller(_caller.get()))
    voices = VoiceRegistry(tokens2wav, [NamedVoice("anna", folder / "anna.wav", "I am anna.")])
    speaker = Speaker(llms, tokens2wav, voices, clock=clock, admission=gate)
    llms.start()
    tokens2wav.start()
    try:
        await asyncio.sleep(1.0)
        yield Storm(clock, llm, token2wav, gate, (llms, tokens2wav), speaker)
    finally:
        await llms.close()
        await tokens2wav.close()


def percentile(values: list[float], share: float) -> float:
    """Return the value below which that share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
