"""Many listeners over many replicas in virtual time: real gateways with their routers, modelled servers behind them.

    listeners ─► gateways (pipeline, router, admission) ─┬─► LLM servers, a GPU each
                                                         └─► token2wav servers (real engine), a GPU each

A listener hears one utterance after another, each asked for when the one before has been played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from cosydit.bench.types import RequestRecord
from gateway.chunking.policies import ChunkSettings
from gateway.core import Utterance
from gateway.lifecycle.gate import Gate
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.discovery import Places
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.replica import Replica, RoutingSettings
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.registry import VoiceRegistry
from lab.simulate.compute import OwnGPU, SerialProcess, SharedGPU
from lab.simulate.costs import BESIDE, CostModel
from lab.simulate.crowd import Crowd, CrowdPlan
from lab.simulate.llm import ModelledLLM
from lab.simulate.servers import LLMLink, Token2WavLink, Token2WavServer
from lab.simulate.single_gpu import PipelineDoor, voice_of
from lab.simulate.token2wav import MAX_STREAMS, ModelledToken2Wav
from tests.virtual_time import ManualClock, run_virtually
from token2wav_service.contract import TOKEN_RATE_HZ

LETTERS_PER_S = 15.0
"""Letters spoken in a second, which give an utterance's length."""
SAMPLE_INTERVAL_S = 1.0
_FIRST_PORT = 8001
_SETTLE_S = 3.0
"""Seconds before the first listener, in which every gateway probes every replica."""


@dataclass(frozen=True)
class FleetPlan:
    """What there is and what happens; seconds count from the first listener."""

    crowd: CrowdPlan
    token2wav: int = 64
    """Number of token2wav servers, a GPU each."""
    llms: int = 20
    """Number of LLM servers, a GPU each."""
    gateways: int = 40
    """Number of gateway processes; listeners are spread over them evenly."""
    max_streams: int = MAX_STREAMS
    """Most streams of a token2wav server."""
    lost_at_s: tuple[float, ...] = ()
    """Times when token2wav servers are lost: the first, the second, ..."""
    returns_after_s: float | None = 20.0
    """Seconds until a lost server is back; None: never."""
    llm_lost_at_s: tuple[float, ...] = ()
    """Times when LLM servers are lost; they do not come back."""
    rolling_update_at_s: float | None = None
    """Time when the restarts of all token2wav servers begin, some at once."""
    restarted_at_once: int = 4
    grace_s: float = 30.0
    """Seconds in which a restarted server's streams may go on."""
    start_s: float = 15.0
    """Seconds from the start of a token2wav process to its being ready."""
    seed: int = 0
    """Seed of the steps' times and of the routers' draws; the crowd has its own."""


@dataclass
class FleetSample:
    """The fleet at one moment."""

    at_s: float
    listeners: int
    """Listeners who have begun."""
    streams: list[int]
    """Open streams at each token2wav server."""
    busy_s: list[float]
    """Seconds that each token2wav server has spent in steps; a step counts when it has ended."""
    llm_running: int
    llm_waiting: int


@dataclass
class FleetRun:
    """What became of a plan."""

    records: list[RequestRecord]
    refused: int
    """Requests that were told to come back later."""
    failovers: int
    """Streams that went on at another token2wav server."""
    llm_failovers: int
    samples: list[FleetSample] = field(default_factory=list)


def simulate_fleet(costs: CostModel, plan: FleetPlan) -> FleetRun:
    """Run a plan to its end."""
    return run_virtually(lambda clock: _Fleet(costs, plan, clock).run())


class _GatewayProcess:
    """One gateway with its clients of all servers."""

    def __init__(
        self,
        costs: CostModel,
        servers: dict[str, Token2WavServer],
        llms: dict[str, ModelledLLM],
        clock: ManualClock,
        draw: Random,
    ) -> None:
        process, settings = SerialProcess(), RoutingSettings()
        self.llm = RoutedSpeechLM(
            Fleet(LLM, settings, clock, draw),
            Places(tuple(llms)),
            lambda url: LLMLink(llms[url], process),
            clock,
        )
        self.token2wav = RoutedToken2Wav(
            Fleet(TOKEN2WAV, settings, clock, draw),
            Places(tuple(servers)),
            lambda address: Token2WavLink(servers[address], process),
            clock,
        )
        self._voices = VoiceRegistry(self.token2wav)
        pipeline_settings = PipelineSettings(ChunkSettings(dynamic_chunk_strategy="deadline").policy())
        gate = Gate(self.llm, self.token2wav, clock)
        speaker = Speaker(self.llm, self.token2wav, self._voices, pipeline_settings, clock, admission=gate)
        self.door = PipelineDoor(speaker, process, costs)

    def start(self) -> None:
        self.llm.start()
        self.token2wav.start()

    async def make_voices(self, names: Sequence[str]) -> None:
        for name in names:
            await self._voices.resolve(voice_of(name))

    async def close(self) -> None:
        await self.llm.close()
        await self.token2wav.close()

    def failovers(self, statuses: tuple[Replica, ...]) -> int:
        return sum(status.failovers_total for status in statuses)


class _Fleet:
    def __init__(self, costs: CostModel, plan: FleetPlan, clock: ManualClock) -> None:
        self._costs, self._plan, self._clock = costs, plan, clock
        ports = count(_FIRST_PORT)
        self._token2wav_numbers = count()
        self._servers = {
            address: Token2WavServer(address, self._make_token2wav)
            for address in (f"10.0.0.1:{next(ports)}" for _ in range(plan.token2wav))
        }
        self._llms = {
            f"http://10.0.0.2:{9000 + number}": ModelledLLM(costs, OwnGPU(), speech_tokens, self._draw("llm", number))
            for number in range(plan.llms)
        }
        self._gateways = [
            _GatewayProcess(costs, self._servers, self._llms, clock, self._draw("gateway", number))
            for number in range(plan.gateways)
        ]
        self._samples: list[FleetSample] = []
        self._began_s = 0.0

    def _make_token2wav(self) -> ModelledToken2Wav:
        draw = self._draw("token2wav", next(self._token2wav_numbers))
        return ModelledToken2Wav(
            self._costs, SharedGPU(self._costs.slowdowns, BESIDE), self._clock, self._plan.max_streams, draw
        )

    def _draw(self, process: str, number: int) -> Random:
        return Random(f"{process} {number} {self._plan.seed}")

    async def run(self) -> FleetRun:
        for llm in self._llms.values():
            llm.start()
        for server in self._servers.values():
            server.up()
        for gateway in self._gateways:
            gateway.start()
        await asyncio.sleep(_SETTLE_S)
        await asyncio.gather(*(gateway.make_voices(self._plan.crowd.voice_names) for gateway in self._gateways))
        self._began_s = self._clock.now()
        crowd = Crowd(self._plan.crowd, [gateway.door for gateway in self._gateways], self._clock)
        async with AsyncExitStack() as beside:
            for work in (self._sample(crowd), *self._events()):
                task = asyncio.create_task(work)
                beside.callback(task.cancel)
            await crowd.listen()
        run = self._result(crowd)
        for gateway in self._gateways:
            await gateway.close()
        return run

    def _result(self, crowd: Crowd) -> FleetRun:
        return FleetRun(
            crowd.records,
            crowd.refused,
            sum(gateway.failovers(gateway.token2wav.snapshot()) for gateway in self._gateways),
            sum(gateway.failovers(gateway.llm.snapshot()) for gateway in self._gateways),
            self._samples,
        )

    async def _sample(self, crowd: Crowd) -> None:
        while True:
            llms = self._llms.values()
            self._samples.append(
                FleetSample(
                    self._clock.now() - self._began_s,
                    crowd.listeners,
                    [server.open_streams for server in self._servers.values()],
                    [server.total_busy_s for server in self._servers.values()],
                    sum(llm.running for llm in llms),
                    sum(llm.waiting for llm in llms),
                )
            )
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def _events(self) -> Iterator[Coroutine[Any, Any, None]]:
        plan, servers, llms = self._plan, list(self._servers.values()), list(self._llms.values())
        for server, at_s in zip(servers, plan.lost_at_s, strict=False):
            yield self._lose(server, at_s)
        for llm, at_s in zip(llms, plan.llm_lost_at_s, strict=False):
            yield self._lose_llm(llm, at_s)
        if plan.rolling_update_at_s is not None:
            yield self._update(servers, plan.rolling_update_at_s)

    async def _lose(self, server: Token2WavServer, at_s: float) -> None:
        await asyncio.sleep(at_s)
        server.kill()
        if self._plan.returns_after_s is not None:
            await asyncio.sleep(self._plan.returns_after_s)
            server.up()

    async def _lose_llm(self, llm: ModelledLLM, at_s: float) -> None:
        await asyncio.sleep(at_s)
        await llm.stop()

    async def _update(self, servers: list[Token2WavServer], at_s: float) -> None:
        await asyncio.sleep(at_s)
        turns = asyncio.Semaphore(self._plan.restarted_at_once)

        async def update(server: Token2WavServer) -> None:
            async with turns:
                await server.restart(self._plan.grace_s, self._plan.start_s)

        await asyncio.gather(*map(update, servers))


def speech_tokens(utterance: Utterance) -> int:
    """Return how many tokens speak a text."""
    return max(1, round(TOKEN_RATE_HZ * len(utterance.text) / LETTERS_PER_S))
