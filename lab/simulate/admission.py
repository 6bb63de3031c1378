"""Who is refused on one GPU host, in virtual time: the real admission of several gateway processes, modelled services.

    callers ─► gateway processes ─┬─► our own LLM:  the real engines with their limits; steps as long as on a GPU
                                  └─► token2wav     that both share

Each rate is the first load of a fresh host. Requests come at random moments, then as many a second as the GPU serves
with ease: who is refused then shows how the limit recovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random

from benchmarks.lib.sweep import jobs_of, open_run
from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, PreparedRequest
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import percentile, playback_underrun
from cosydit.bench.types import RequestRecord
from gateway.chunking.policies import ChunkSettings
from gateway.errors import OverloadedError
from gateway.lifecycle.gate import Gate
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.discovery import Places
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.replica import RoutingSettings
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.registry import VoiceRegistry
from lab.simulate.compute import SerialProcess, SharedGPU
from lab.simulate.costs import BESIDE, CostModel
from lab.simulate.own_llm import OwnLLM, OwnLLMLink
from lab.simulate.servers import Token2WavLink, Token2WavServer
from lab.simulate.single_gpu import SPEECH_TOKENS, VOICES, PipelineDoor, voice_of
from lab.simulate.token2wav import ModelledToken2Wav
from tests.virtual_time import ManualClock, run_virtually

PROCESSES, SLOTS = 4, 1000
"""Gateway processes of `cosydit serve` on a host with 16 cores, and streams of token2wav on an H200."""
EASY_PER_S, EASY_S, RECOVERY_S = 20.0, 10.0, 4.0
"""Requests a second after each run, for so many seconds; those after the first few of them count as recovered."""
_SETTLE_S = 3.0
_DIGITS = 4


@dataclass(frozen=True)
class Heard:
    """What became of the requests of one rate."""

    requests: int
    refused: int
    failed: int
    audio_s_per_s: float
    """Seconds of audio made in each second of arrivals."""
    ttfa_p50_s: float
    ttfa_p95_s: float
    ran_dry: int
    """Requests whose playback, begun at the first sample, had a gap."""
    short_s: float
    """Seconds of all gaps."""
    most_streams: int
    recovered: int
    """Requests of the easy load behind, after its first seconds."""
    refused_recovered: int


class _Process:
    """One gateway process."""

    def __init__(
        self,
        costs: CostModel,
        settings: RoutingSettings,
        server: Token2WavServer,
        llm_server: OwnLLM,
        clock: ManualClock,
    ) -> None:
        process = SerialProcess()
        llm = OwnLLMLink(llm_server, process, costs.gateway.message_s, SPEECH_TOKENS)
        self.llm = RoutedSpeechLM(
            Fleet(LLM, settings, clock, Random(0)),
            Places(("grpc://l",)),
            lambda _: llm,
            clock,
        )
        self.token2wav = RoutedToken2Wav(
            Fleet(TOKEN2WAV, settings, clock, Random(0)),
            Places((server.address,)),
            lambda _: Token2WavLink(server, process),
            clock,
        )
        self.voices = VoiceRegistry(self.token2wav)
        pipeline = PipelineSettings(ChunkSettings().policy())
        gate = Gate(self.llm, self.token2wav, clock)
        speaker = Speaker(self.llm, self.token2wav, self.voices, pipeline, clock, admission=gate)
        self.door = PipelineDoor(speaker, process, costs)

    def start(self) -> None:
        self.llm.start()
        self.token2wav.start()

    async def close(self) -> None:
        await self.llm.close()
        await self.token2wav.close()


class _Host:
    """The processes of one host; a caller's connection reaches any of them."""

    def __init__(self, costs: CostModel, clock: ManualClock) -> None:
        settings = RoutingSettings()
        gpu = SharedGPU(costs.slowdowns, BESIDE)
        self.llm = OwnLLM(gpu, clock)
        self.server = Token2WavServer("127.0.0.1:8001", lambda: ModelledToken2Wav(costs, gpu, clock, SLOTS))
        self._processes = [_Process(costs, settings, self.server, self.llm, clock) for _ in range(PROCESSES)]
        self._draw = Random(0)
        self.most_streams = 0

    async def start(self) -> None:
        self.llm.start()
        self.server.up()
        for process in self._processes:
            process.start()
        await asyncio.sleep(_SETTLE_S)
        for process in self._processes:
            for name in VOICES:
                await process.voices.resolve(voice_of(name))

    async def close(self) -> None:
        for process in self._processes:
            await process.close()
        self.server.kill()

    async def speak(self, job: PreparedRequest, request_id: str) -> AsyncGenerator[float, None]:
        """Speak one text; yields seconds of audio."""
        async with aclosing(self._draw.choice(self._processes).door.speak(job, request_id)) as audio:
            async for audio_s in audio:
                self.most_streams = max(self.most_streams, self.server.open_streams)
                yield audio_s


def simulate_admission(costs: CostModel, requests_per_s: float, seconds: float) -> Heard:
    """Send so many requests a second for so many seconds, then an easy load.

    Args:
        costs: of everything.
        requests_per_s: mean rate of the arrivals.
        seconds: of arrivals.
    """
    return run_virtually(lambda clock: _run(costs, requests_per_s, seconds, clock))


async def _run(costs: CostModel, requests_per_s: float, seconds: float, clock: ManualClock) -> Heard:
    host = _Host(costs, clock)
    await host.start()
    plan, easy = open_run(requests_per_s, seconds, VOICES), open_run(EASY_PER_S, EASY_S, VOICES)
    loud = asyncio.create_task(_load(host, jobs_of(plan), plan.load, clock))
    await asyncio.sleep(seconds)
    behind = await _load(host, jobs_of(easy), easy.load, clock)
    records = await loud
    await host.close()
    recovered = [record for record in behind if record.sent_s >= RECOVERY_S]
    return _heard(records, seconds, host.most_streams, recovered)


async def _load(
    host: _Host, jobs: Sequence[PreparedRequest], load: LoadPlan, clock: ManualClock
) -> list[RequestRecord]:
    generator = LoadGenerator(host.speak, lambda job: f"{job.input.utt}|{job.voice}", clock, PIECES_OF_A_CHUNK_S)
    return (await generator.run(jobs, load, lambda record: None)).records


def _heard(
    records: Sequence[RequestRecord], seconds: float, most_streams: int, recovered: Sequence[RequestRecord]
) -> Heard:
    spoken = [record for record in records if record.is_ok]
    firsts = [record.arrivals[0].at_s for record in spoken]
    gaps = [playback_underrun(record.arrivals, 0.0) for record in spoken]
    heard_s = sum(
        arrival.audio_s for record in spoken for arrival in record.arrivals if record.sent_s + arrival.at_s <= seconds
    )
    refused = sum(map(_is_refused, records))
    return Heard(
        requests=len(records),
        refused=refused,
        failed=len(records) - len(spoken) - refused,
        audio_s_per_s=round(heard_s / seconds, 1),
        ttfa_p50_s=round(percentile(firsts, 50), _DIGITS),
        ttfa_p95_s=round(percentile(firsts, 95), _DIGITS),
        ran_dry=sum(1 for gap in gaps if gap.gaps),
        short_s=round(sum(gap.short_s for gap in gaps), _DIGITS),
        most_streams=most_streams,
        recovered=len(recovered),
        refused_recovered=sum(map(_is_refused, recovered)),
    )


def _is_refused(record: RequestRecord) -> bool:
    return (record.error or "").startswith(OverloadedError.__name__)
