"""Replicas that are killed and restarted under load, and what the callers of the HTTP door hear of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from cosydit.stack.process import ServiceProcess
from cosydit.stack.stack import LocalStack, StackOptions

TIMEOUT_S = 120.0
_PCM_PEAK = 32767.0
_HTTP_OK = 200
EXACT_DB = 999.0
"""Ratio written where two signals are equal to the bit."""

_OPEN_STREAMS = re.compile(r'replica_open_streams\{[^}]*replica="([^"]+)"[^}]*\} ([\d.]+)')


@dataclass(frozen=True)
class Heard:
    """One request's answer."""

    seed: int
    samples: npt.NDArray[np.float32]
    """[N] audio in +-1 at 24 kHz, until the end or the failure."""
    seconds: float
    longest_pause_s: float
    """Longest pause between two pieces of audio in seconds."""
    error: str | None = None
    """What went wrong; None if the audio is whole."""


class Callers:
    """Callers of one gateway, each with texts of its own."""

    def __init__(self, url: str, texts: list[str], voice: str = "default") -> None:
        """Call nobody yet; caller number n speaks text n (modulo their number) with seed n."""
        self._url = url
        self._texts = texts
        self._voice = voice
        self.first_audio = asyncio.Event()
        """Set when any caller has received audio."""

    async def all_once(self, count: int) -> list[Heard]:
        """Let so many callers speak at the same time, once each."""
        self.first_audio = asyncio.Event()
        async with self._client(count) as client:
            return list(await asyncio.gather(*(self._speak(client, seed) for seed in range(count))))

    async def again_and_again(self, count: int, until: Callable[[], bool]) -> list[Heard]:
        """Let so many callers speak, each again as soon as it has heard all, until told to stop."""

        async def caller(client: httpx.AsyncClient, seed: int) -> list[Heard]:
            heard = []
            while not until():
                heard.append(await self._speak(client, seed))
            return heard

        async with self._client(count) as client:
            lists = await asyncio.gather(*(caller(client, seed) for seed in range(count)))
        return [each for heard in lists for each in heard]

    def _client(self, count: int) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=count)
        return httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)

    async def _speak(self, client: httpx.AsyncClient, seed: int) -> Heard:
        text = self._texts[seed % len(self._texts)]
        body = {"model": "cosydit", "input": text, "voice": self._voice, "response_format": "pcm", "seed": seed}
        began_s = time.monotonic()
        pieces: list[bytes] = []
        pauses, last_s, error = [0.0], began_s, None
        try:
            async with client.stream("POST", f"{self._url}/v1/audio/speech", json=body) as answer:
                if answer.status_code != _HTTP_OK:
                    error = f"{answer.status_code} {(await answer.aread())[:300]!r}"
                    return _heard(seed, pieces, began_s, pauses, error)
                async for piece in answer.aiter_bytes():
                    now_s = time.monotonic()
                    pauses += [now_s - last_s] if pieces else []
                    last_s = now_s
                    pieces.append(piece)
                    self.first_audio.set()
        except httpx.HTTPError as failure:
            error = repr(failure)
        return _heard(seed, pieces, began_s, pauses, error)


def _heard(seed: int, pieces: list[bytes], began_s: float, pauses: list[float], error: str | None) -> Heard:
    data = b"".join(pieces)
    samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / _PCM_PEAK
    return Heard(seed, samples, time.monotonic() - began_s, max(pauses), error)


def snr_db(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Return the signal-to-noise ratio in dB of one waveform against another; minus EXACT_DB if lengths differ."""
    if got.shape != expected.shape or not len(got):
        return -EXACT_DB
    noise = float(np.sum((got.astype(np.float64) - expected) ** 2))
    signal = float(np.sum(expected.astype(np.float64) ** 2))
    return EXACT_DB if noise == 0.0 else 10 * float(np.log10(max(signal, 1e-30) / noise))


READY_TIMEOUT_S = 180.0
_POLL_S = 0.05
LLM_INDEX = 0


class Processes:
    """The services of a running stack; whoever started the stack stops it, restarted services included."""

    def __init__(self, stack: LocalStack) -> None:
        """Take over a stack that runs."""
        self._stack = stack

    @property
    def options(self) -> StackOptions:
        """What runs where."""
        return self._stack.options

    @property
    def token2wav_servers(self) -> int:
        """How many there are."""
        return 1 + len(self.options.replicas)

    def llm(self) -> ServiceProcess:
        """The LLM service."""
        return self._stack.services[LLM_INDEX]

    def token2wav(self, number: int) -> ServiceProcess:
        """A token2wav server by its number, from 0."""
        return self._stack.services[LLM_INDEX + 1 + number]

    async def busiest_token2wav(self) -> ServiceProcess:
        """Return the token2wav server where the gateway has the most streams now."""
        async with httpx.AsyncClient(trust_env=False) as client:
            metrics = (await client.get(f"{self.options.gateway_url}/metrics")).text
        streams = {address: float(count) for address, count in _OPEN_STREAMS.findall(metrics)}
        urls = self.options.token2wav_urls
        return self.token2wav(max(range(len(urls)), key=lambda number: streams[urls[number]]))

    async def kill(self, service: ServiceProcess) -> None:
        """Have the kernel end a service at once: the process that serves, then who started it."""
        for pid in [*_descendants(service.pid), service.pid]:
            _send(pid, signal.SIGKILL)
        await self._until_gone(service)

    async def stop(self, service: ServiceProcess) -> None:
        """Ask a service to end, as a deployment does, and wait until it has."""
        _send(service.pid, signal.SIGTERM)
        await self._until_gone(service)

    async def start(self, service: ServiceProcess) -> None:
        """Start a service again, as a supervisor does, and wait until it is ready."""
        await asyncio.to_thread(service.stop)
        service.start()
        await asyncio.to_thread(service.wait_ready, READY_TIMEOUT_S)

    async def _until_gone(self, service: ServiceProcess) -> None:
        while service.returncode is None:
            await asyncio.sleep(_POLL_S)


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [each for child in children for each in (child, *_descendants(child))]


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@dataclass(frozen=True)
class StepReport:
    """One thing done, and what the callers heard."""

    name: str
    requests: int
    lost: int
    """Requests that did not get their whole audio."""
    different: int
    """Requests whose audio differs from the unbroken run's by more than the bound, or in length."""
    worst_snr_db: float
    """Worst ratio of the requests with the unbroken run's number of samples."""
    longest_pause_s: float
    slowest_s: float
    failovers: int
    """Streams and answers that another replica, or the same one later, went on with."""
    errors: tuple[str, ...]
    """Texts of the first few errors."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Scenario:
    """Steps over one running stack; the first one sets what is expected of the others."""

    def __init__(self, processes: Processes, callers: Callers, count: int, bound_db: float) -> None:
        """Do nothing yet.

        Args:
            processes: to be killed and restarted.
            callers: of its gateway.
            count: callers at the same time.
            bound_db: least SNR of audio that counts as the unbroken run's.
        """
        self._processes = processes
        self._callers = callers
        self._count = count
        self._bound_db = bound_db
        self._expected: Mapping[int, Heard] = {}

    async def unbroken(self) -> StepReport:
        """Let all speak once with nobody disturbed."""
        heard = await self._callers.all_once(self._count)
        self._expected = {each.seed: each for each in heard}
        return self._report("unbroken", heard, 0)

    async def kill_token2wav(self, comes_back: bool = True) -> StepReport:
        """SIGKILL the token2wav server with the most streams; it stays away until the end of the step, or for good."""
        report, service = await self._kill(
            "SIGKILL of a token2wav server", self._processes.busiest_token2wav, starts_again=False
        )
        if comes_back:
            await self._processes.start(service)
        return report

    async def kill_llm(self) -> StepReport:
        """SIGKILL the only LLM in mid-stream and start it again at once."""

        async def only_llm() -> ServiceProcess:
            return self._processes.llm()

        report, _ = await self._kill("SIGKILL of the LLM", only_llm, starts_again=True)
        return report

    async def rolling_restart(self, servers: int | None = None) -> StepReport:
        """Stop and start one token2wav server after the other while all speak again and again.

        Args:
            servers: only so many of them; None: all.
        """
        is_done = False
        before = self._failovers()
        speaking = asyncio.create_task(self._callers.again_and_again(self._count, lambda: is_done))
        try:
            for number in range(self._processes.token2wav_servers if servers is None else servers):
                service = self._processes.token2wav(number)
                await self._processes.stop(service)
                await self._processes.start(service)
        finally:
            is_done = True
            heard = await speaking
        return self._report("rolling restart of token2wav", heard, self._failovers() - before)

    async def _kill(
        self, name: str, choose: Callable[[], Awaitable[ServiceProcess]], starts_again: bool
    ) -> tuple[StepReport, ServiceProcess]:
        before = self._failovers()
        speaking = asyncio.create_task(self._callers.all_once(self._count))
        await asyncio.sleep(0)
        await self._callers.first_audio.wait()
        service = await choose()
        await self._processes.kill(service)
        if starts_again:
            await self._processes.start(service)
        heard = await speaking
        return self._report(name, heard, self._failovers() - before), service

    def _report(self, name: str, heard: list[Heard], failovers: int) -> StepReport:
        lost = [each for each in heard if each.error is not None or not len(each.samples)]
        whole = [each for each in heard if each.error is None and each.seed in self._expected]
        ratios = [snr_db(each.samples, self._expected[each.seed].samples) for each in whole]
        return StepReport(
            name=name,
            requests=len(heard),
            lost=len(lost),
            different=sum(ratio < self._bound_db for ratio in ratios),
            worst_snr_db=round(min((ratio for ratio in ratios if ratio > -EXACT_DB), default=EXACT_DB), 1),
            longest_pause_s=round(max(each.longest_pause_s for each in heard), 3),
            slowest_s=round(max(each.seconds for each in heard), 3),
            failovers=failovers,
            errors=tuple(each.error or "no audio" for each in lost[:3]),
        )

    def _failovers(self) -> int:
        """Count what the gateway's log says of streams and answers that went on."""
        log = (self._processes.options.log_dir / "gateway.log").read_text(errors="replace")
        return log.count(" goes on at ") + log.count("asking again for an answer")
