"""The processes of a campaign: stand-ins behind proxies or the real services, and a real gateway before them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Protocol

import httpx
import numpy as np

from benchmarks.lib.failover import Processes, snr_db
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceProcess, ServiceSpec
from cosydit.stack.stack import LocalStack, StackOptions
from gateway.voices.draft import wav_of_pcm16
from lab.faults.clients import BAD_CLIENTS, TEXTS, Answer, Doors, speak, upload
from lab.faults.plan import (
    CLOCK_JUMP,
    FEW_DESCRIPTORS,
    FULL_DISK,
    KILL,
    KILL_MODEL,
    PROCESS_FAULTS,
    STOP,
    STOP_MODEL,
    Boundary,
    Fault,
)
from lab.faults.proxy import HOST, Direction, FaultyProxy
from lab.faults.stand_ins import LACKS, LLM_MISBEHAVIOURS, TOKEN2WAV_MISBEHAVIOURS
from servicekit.drain import sum_of
from tests.raw_clients import stop_and_continue
from token2wav_service.serving.process.health import model_processes
from token2wav_service.serving.process.server import free_ports

READY_TIMEOUT_S = 120.0
BOUND_DB = 45.0
"""Least ratio of the real services' audio to the unbroken run's."""
_POLL_S, _READ_S = 0.05, 2.0
_STREAMS = "cosydit_gateway_streams"
_FAILOVERS = "cosydit_gateway_failovers_total"
_OPEN_STREAMS = "cosydit_token2wav_open_streams"
_LLM_REQUESTS = ("cosydit_llm_requests_running", "cosydit_llm_requests_waiting")
_FEW_DESCRIPTORS = 256
_CRAWL_BYTES_PER_S = 4000.0
"""Deadlines shorter than the defaults, so that they pass during a campaign."""
_GATEWAY = ("--dynamic-chunk-strategy", "exponential", "--admission-wait-s", "10")
_WAV = wav_of_pcm16(bytes(5 * 48_000), 24_000, 1)
_MPEG4 = b"\0\0\0\x18ftypM4A " + bytes(1000)
"""No sound, but the gateway starts a process to see that."""


class World(Protocol):
    """A running system that can be hurt."""

    doors: Doors

    async def start(self) -> None:
        """Start everything, and hear what is said when nothing is wrong."""
        ...

    async def stop(self) -> None:
        """Stop everything."""
        ...

    async def hurt(self, fault: Fault) -> None:
        """Do what a fault says, and undo it; returns when all processes run again."""
        ...

    async def is_idle(self) -> bool:
        """Whether neither the gateway nor a service has anything under way."""
        ...

    def is_right(self, answer: Answer, fault: Fault | None) -> bool:
        """Whether what a caller heard, up to where it ended, is what it would have heard without a fault."""
        ...


async def started_gateway(service: ServiceProcess) -> None:
    """Start a process and wait until it is ready."""
    await asyncio.to_thread(service.start)
    await asyncio.to_thread(service.wait_ready, READY_TIMEOUT_S)


async def until_ready(url: str, seconds: float) -> float | None:
    """Speak until it goes well; return after how many seconds, or None if it never does."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        if (await speak(url, 0)).is_whole:
            return time.monotonic() - began_s
        await asyncio.sleep(_POLL_S)
    return None


async def _unbroken(doors: Doors, at_once: int) -> dict[int, bytes]:
    """Have every text spoken, so many at once, and return the audio.

    Raises:
        RuntimeError: one can't be.
    """
    turns = asyncio.Semaphore(at_once)

    async def spoken(text: int) -> Answer:
        async with turns:
            return await speak(doors.url, text)

    expected = {}
    for answer in await asyncio.gather(*(spoken(text) for text in range(len(TEXTS)))):
        if not answer.is_whole:
            raise RuntimeError(f"text {answer.text} can't be spoken before any fault: {answer.status} {answer.error}")
        expected[answer.text] = answer.pcm
    return expected


async def failovers_of(doors: Doors) -> int:
    """Return how many streams and answers of a gateway went on elsewhere, or were asked for again."""
    return int(sum_of(await _read(f"{doors.url}/metrics") or "", [_FAILOVERS]))


class _Gateway:
    """The gateway's process, and what can be done to it."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        http, grpc, wyoming = free_ports(3)
        self.doors = Doors(http, grpc, wyoming)
        command = [sys.executable, "-m", "lab.faults.stand_ins", "gateway", *arguments]
        command += ["--port", str(http), "--grpc-port", str(grpc), "--wyoming-port", str(wyoming), *_GATEWAY]
        self.process = ServiceProcess(
            ServiceSpec("gateway", command, f"{self.doors.url}/readyz", folder / "gateway.log", stop_timeout_s=15.0)
        )

    async def hurt(self, fault: Fault) -> None:
        rng, pid = random.Random(fault.number), self.process.pid
        if fault.boundary is Boundary.DOORS:
            await BAD_CLIENTS[fault.kind](self.doors, rng)
        elif fault.kind == STOP:
            await stop_and_continue([pid], fault.seconds)
        elif fault.kind == CLOCK_JUMP:
            there, back = rng.choice(((signal.SIGUSR1, signal.SIGUSR2), (signal.SIGUSR2, signal.SIGUSR1)))
            os.kill(pid, there)
            await asyncio.sleep(fault.seconds)
            os.kill(pid, back)
        elif fault.kind == FULL_DISK:
            with _limited([pid], resource.RLIMIT_FSIZE, 0):
                await upload(self.doors, rng, _WAV)
                await asyncio.sleep(fault.seconds)
        elif fault.kind == FEW_DESCRIPTORS:
            with _limited([pid], resource.RLIMIT_NOFILE, _FEW_DESCRIPTORS):
                await BAD_CLIENTS["idle connections"](self.doors, rng)
                await asyncio.sleep(fault.seconds)
        elif fault.kind in LACKS:
            number, *_ = LACKS[fault.kind]
            os.kill(pid, number)
            await upload(self.doors, rng, _MPEG4)
            await asyncio.sleep(fault.seconds)
            os.kill(pid, number)
        else:
            raise ValueError(f"nothing is known of {fault.name}")


@contextmanager
def _limited(pids: Sequence[int], what: int, most: int) -> Iterator[None]:
    """Let processes have less of something for a while; no file may grow beyond 0 bytes where the disk is full."""
    before = {pid: resource.prlimit(pid, what) for pid in pids}
    try:
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, what, (most, hard))
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, what, limits)


class StandInWorld:
    """Stand-ins of both services, each behind a proxy; see `stand_ins`."""

    def __init__(self, replicas: int, checkpoint: CheckpointLayout, folder: Path, seed: int) -> None:
        """Start nothing yet.

        Args:
            replicas: of each service.
            checkpoint: its tokenizer and voices are used.
            folder: of logs and created voices.
            seed: of garbage.
        """
        ports = free_ports(5 * replicas)
        self._llm_ports, self._llm_proxies = ports[:replicas], ports[replicas : 2 * replicas]
        rest = ports[2 * replicas :]
        self._token2wav_ports, self._token2wav_proxies = rest[:replicas], rest[replicas : 2 * replicas]
        self._state_ports = rest[2 * replicas :]
        rng = random.Random(seed)
        self._proxies = {
            Boundary.LLM: [FaultyProxy(port, rng) for port in self._llm_ports],
            Boundary.TOKEN2WAV: [FaultyProxy(port, rng) for port in self._token2wav_ports],
        }
        self._services = {
            Boundary.LLM: [_stand_in("llm", [port], f"{_url(port)}/health", folder) for port in self._llm_ports],
            Boundary.TOKEN2WAV: [
                _stand_in("token2wav", pair, f"{_url(pair[1])}/state", folder)
                for pair in zip(self._token2wav_ports, self._state_ports, strict=True)
            ],
        }
        arguments = ["--tokenizer-dir", str(checkpoint.llm_dir), "--voices-dir", str(checkpoint.voices_dir)]
        arguments += ["--created-voices-dir", str(folder / "voices"), "--llm-backend", "vllm"]
        arguments += ["--carry-tokens", "0"]  # a stand-in can't tell them from its own
        arguments += ["--llm-url", ",".join(_url(port) for port in self._llm_proxies)]
        arguments += ["--token2wav-url", ",".join(f"{HOST}:{port}" for port in self._token2wav_proxies)]
        self._gateway = _Gateway(arguments, folder)
        self.doors = self._gateway.doors
        self._expected: dict[int, bytes] = {}

    async def start(self) -> None:
        """See `World`."""
        (self._gateway.process.spec.log_path.parent / "voices").mkdir(parents=True, exist_ok=True)
        for where, ports in ((Boundary.LLM, self._llm_proxies), (Boundary.TOKEN2WAV, self._token2wav_proxies)):
            for service in self._services[where]:
                await asyncio.to_thread(service.start)
            for proxy, port in zip(self._proxies[where], ports, strict=True):
                await proxy.start(port)
        await asyncio.to_thread(self._gateway.process.start)
        for service in (*chain(*self._services.values()), self._gateway.process):
            await asyncio.to_thread(service.wait_ready, READY_TIMEOUT_S)
        self._expected = await _unbroken(self.doors, len(TEXTS))

    async def stop(self) -> None:
        """See `World`."""
        await asyncio.to_thread(self._gateway.process.stop)
        for where, services in self._services.items():
            for proxy in self._proxies[where]:
                await proxy.close()
            for service in services:
                await asyncio.to_thread(service.stop)

    async def hurt(self, fault: Fault) -> None:
        """See `World`."""
        if fault.boundary not in self._services:
            await self._gateway.hurt(fault)
            return
        fault = await self._at_the_busiest(fault)
        if fault.kind in PROCESS_FAULTS:
            await self._hurt_process(self._services[fault.boundary][fault.target], fault)
        elif fault.kind in (*LLM_MISBEHAVIOURS, *TOKEN2WAV_MISBEHAVIOURS):
            await self._misbehave(fault)
        else:
            await _hurt_wire(self._proxies[fault.boundary][fault.target], fault)

    async def is_idle(self) -> bool:
        """See `World`."""
        urls = [f"{_url(port)}/state" for port in (*self._llm_ports, *self._state_ports)]
        metrics, *states = await asyncio.gather(*(_read(url) for url in (f"{self.doors.url}/metrics", *urls)))
        if metrics is None or sum_of(metrics, [_STREAMS]) != 0:
            return False
        return not any(state is None or (state and json.loads(state)["open"]) for state in states)

    def is_right(self, answer: Answer, fault: Fault | None) -> bool:
        """See `World`; every sample is compared."""
        expected = self._expected[answer.text]
        return answer.pcm == expected if answer.is_whole else expected.startswith(answer.pcm)

    async def _at_the_busiest(self, fault: Fault) -> Fault:
        """Have a fault happen where most is under way: elsewhere nobody would notice."""
        ports = self._llm_ports if fault.boundary is Boundary.LLM else self._state_ports
        states = await asyncio.gather(*(_read(f"{_url(port)}/state") for port in ports))
        counts = [json.loads(state)["open"] if state else 0 for state in states]
        return replace(fault, target=_busiest(counts, fault.target))

    async def _hurt_process(self, service: ServiceProcess, fault: Fault) -> None:
        if fault.kind == STOP:
            await stop_and_continue([service.pid], fault.seconds)
            return
        service.kill()
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(service.stop)
        await started_gateway(service)

    async def _misbehave(self, fault: Fault) -> None:
        ports = self._llm_ports if fault.boundary is Boundary.LLM else self._state_ports
        async with httpx.AsyncClient(timeout=5, trust_env=False, verify=False) as client:
            url = f"{_url(ports[fault.target])}/state"
            await client.post(url, params={"misbehaviour": fault.kind})
            await asyncio.sleep(fault.seconds)
            await client.post(url)


def _busiest(counts: Sequence[float], drawn: int) -> int:
    """Return whose count is highest; of equals, the one that was drawn."""
    return max(range(len(counts)), key=lambda number: (counts[number], number == drawn))


async def _hurt_wire(proxy: FaultyProxy, fault: Fault) -> None:
    if fault.kind == "cut":
        proxy.cut()
    elif fault.kind == "freeze":
        await proxy.freeze(fault.seconds)
    elif fault.kind == "crawl":
        await proxy.crawl(_CRAWL_BYTES_PER_S, fault.seconds)
    elif fault.kind == "refuse":
        await proxy.refuse(fault.seconds)
    else:
        what, _, direction = fault.kind.rpartition(" ")
        (proxy.halve if what == "half a piece" else proxy.garble)(Direction(direction))
        await asyncio.sleep(fault.seconds)
        proxy.disarm()


async def _read(url: str) -> str | None:
    """Return what an address answers; empty where no process listens, which holds nothing; None if it is stuck."""
    try:
        async with httpx.AsyncClient(timeout=_READ_S, trust_env=False, verify=False) as client:
            return (await client.get(url)).text
    except httpx.ConnectError:
        return ""
    except httpx.HTTPError:
        return None


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _stand_in(kind: str, ports: Sequence[int], ready_url: str, folder: Path) -> ServiceProcess:
    command = [sys.executable, "-m", "lab.faults.stand_ins", kind, *map(str, ports)]
    name = f"{kind}-{ports[0]}"
    return ServiceProcess(ServiceSpec(name, command, ready_url, folder / f"{name}.log", stop_timeout_s=5.0))


class RealWorld:
    """The product's own services, and several token2wav servers."""

    def __init__(self, options: StackOptions, folder: Path) -> None:
        """Start nothing yet.

        Args:
            options: of the services; the gateway is started apart, with the campaign's own options.
            folder: of the gateway's log.
        """
        self._stack = LocalStack(options)
        self._processes = Processes(self._stack)
        checkpoint = options.checkpoint
        arguments = ["--tokenizer-dir", str(checkpoint.llm_dir), "--voices-dir", str(checkpoint.voices_dir)]
        arguments += ["--llm-url", options.llm_url, "--token2wav-url", ",".join(options.token2wav_urls)]
        arguments += ["--admission-wait-s", "60"]
        self._gateway = _Gateway(arguments, folder)
        self.doors = self._gateway.doors
        self._expected: dict[int, bytes] = {}

    async def start(self) -> None:
        """See `World`."""
        await asyncio.to_thread(self._stack.start)
        await started_gateway(self._gateway.process)
        self._expected = await _unbroken(self.doors, 1)

    async def stop(self) -> None:
        """See `World`."""
        await asyncio.to_thread(self._gateway.process.stop)
        await asyncio.to_thread(self._stack.stop)

    async def hurt(self, fault: Fault) -> None:
        """See `World`."""
        if fault.boundary in (Boundary.GATEWAY, Boundary.DOORS):
            await self._gateway.hurt(fault)
            return
        is_llm = fault.boundary is Boundary.LLM
        service = self._processes.llm() if is_llm else self._processes.token2wav(await self._busiest(fault.target))
        if fault.kind in (STOP, STOP_MODEL):
            await stop_and_continue(await asyncio.to_thread(_workers, service.pid), fault.seconds)
        elif fault.kind == KILL:
            await self._processes.kill(service)
        elif fault.kind == FULL_DISK:
            pids = {service.pid, *await asyncio.to_thread(_workers, service.pid)}
            with _limited(list(pids), resource.RLIMIT_FSIZE, 0):
                await asyncio.sleep(fault.seconds)
        elif fault.kind == KILL_MODEL:
            for pid in await asyncio.to_thread(_workers, service.pid):
                os.kill(pid, signal.SIGKILL)
            while service.returncode is None:  # its launcher sees it, and ends it
                await asyncio.sleep(_POLL_S)
        if service.returncode is not None:
            await self._processes.start(service)

    async def _busiest(self, drawn: int) -> int:
        urls = [f"http://{HOST}:{ports.metrics}/metrics" for ports in self._stack.options.tritons]
        texts = await asyncio.gather(*(_read(url) for url in urls))
        return _busiest([sum_of(text or "", [_OPEN_STREAMS]) for text in texts], drawn)

    async def is_idle(self) -> bool:
        """See `World`."""
        options = self._stack.options
        urls = {f"{self.doors.url}/metrics": (_STREAMS,), f"{options.llm_url}/metrics": _LLM_REQUESTS}
        urls |= {f"http://{HOST}:{ports.metrics}/metrics": (_OPEN_STREAMS,) for ports in options.tritons}
        texts = await asyncio.gather(*(_read(url) for url in urls))
        return not any(
            text is None or sum_of(text, list(names)) for text, names in zip(texts, urls.values(), strict=True)
        )

    def is_right(self, answer: Answer, fault: Fault | None) -> bool:
        """See `World`; after the loss of the LLM an answer goes on with other tokens, and is not compared."""
        if fault is not None and fault.boundary is Boundary.LLM:
            return True
        got, expected = (
            np.frombuffer(pcm[: len(pcm) // 2 * 2], "<i2") for pcm in (answer.pcm, self._expected[answer.text])
        )
        if not answer.is_whole:
            expected = expected[: len(got)]
        return not len(got) or snr_db(got.astype(np.float32), expected.astype(np.float32)) >= BOUND_DB


def _workers(pid: int) -> list[int]:
    """Return the processes of a service that do its work: Triton's model processes, or the process itself."""
    children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    found = [worker for child in children for worker in model_processes(child)]
    return found or [pid]
