"""The parent of several workers: holds the ports, starts the workers again that end, and stops them together.

    ports bound ─► workers open their doors ─► all warm: ready ─► SIGTERM: all drain ─► ends

A worker that dies or hangs takes its own streams with it and nothing else. A second SIGTERM, or an interrupt, closes
all doors at once; one more kills the workers, and so does time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from gateway.config import GatewayConfig
from gateway.errors import ConfigError
from gateway.processes.hub import Hub
from gateway.processes.link import open_link
from gateway.processes.metrics import from_thread, gathered_registry
from gateway.processes.ports import port_of, reserve_port
from gateway.telemetry import exposition
from gateway.telemetry.exposition import BEAT_INTERVAL_S
from servicekit.clock import SystemClock
from servicekit.tasks import running_meanwhile
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)

WORKER_VARIABLE = "COSYDIT_GATEWAY_WORKER"
"""Environment variable of a worker: NUMBER:DESCRIPTOR of its end of the socket pair."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Seconds before a worker is started again: the pause doubles each time, until the worker has settled."""
SETTLED_S = 60.0
MAX_FAILED_STARTS = 5
"""Number of ends of one worker before it opened its doors, after which the gateway ends."""
MARGIN_S = 5.0
"""Seconds beyond its own longest time after which a worker that was asked to stop is killed."""
METRICS_INTERVAL_S = 5.0
"""Seconds between two notes of a worker's counts, which outlive it."""
INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True)
class Seat:
    """What makes a process a worker."""

    number: int
    end: socket.socket


def seat_of(environment: MutableMapping[str, str]) -> Seat | None:
    """Return the seat that the parent gave this process; None if it has no parent."""
    told = environment.pop(WORKER_VARIABLE, None)
    if told is None:
        return None
    number, _, descriptor = told.partition(":")
    return Seat(int(number), socket.socket(fileno=int(descriptor)))


def run_parent(config: GatewayConfig, argv: Sequence[str]) -> int:
    """Serve with as many processes as the config says until stopped; return the exit status.

    Args:
        config: of everything.
        argv: command line of `python -m gateway`; workers get it too.

    Raises:
        ConfigError: a port can't be had.
    """
    with ExitStack() as ports:
        return asyncio.run(_Parent(config, [*argv, *_reserve(config, ports)]).run())


def _reserve(config: GatewayConfig, ports: ExitStack) -> list[str]:
    """Bind all ports; return what workers must be told of them beyond the command line."""
    told: list[str] = []
    wanted = [("--port", config.host, config.port)]
    if config.grpc_port is not None:
        wanted.append(("--grpc-port", config.host, config.grpc_port))
    for option, host, port in wanted:
        reserved = reserve_port(host, port, option)
        for each in reserved:
            ports.enter_context(each)
        told += [option, str(port_of(reserved))]
    return told + _reserve_wyoming(config, ports)


def _reserve_wyoming(config: GatewayConfig, ports: ExitStack) -> list[str]:
    wyoming = config.wyoming
    if wyoming is None or wyoming.shut_because is not None:
        return []
    try:
        reserved = reserve_port(wyoming.host, wyoming.port, "--wyoming-port, 0 for none")
    except ConfigError as error:
        if wyoming.is_port_asked_for:
            raise
        logger.warning("Wyoming is off: %s", error)
        return ["--wyoming-port", "0"]
    for each in reserved:
        ports.enter_context(each)
    return []


class _Parent:
    """One gateway's workers."""

    def __init__(self, config: GatewayConfig, argv: Sequence[str]) -> None:
        self._config = config
        self._argv = argv
        clock = SystemClock()
        voices = config.voices
        self._hub = Hub(config.processes, voices.inline, voices.limits.creations_per_minute, clock)
        self._clock = clock
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stops = 0
        """Number of signals that asked to end."""
        self._was_interrupted = False
        self._stopping = asyncio.Event()
        self._has_opened = False
        """Whether any worker has opened its doors."""
        self._status = 0

    async def run(self) -> int:
        """Serve; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        with ExitStack() as stack:
            if (port := self._config.telemetry.metrics_port) is not None:
                registry = gathered_registry(lambda: from_thread(self._hub.metrics, loop))
                stack.enter_context(exposition.metrics_port(registry, self._hub, self._config.host, port))
            try:
                async with (
                    running_meanwhile(self._keep_noting_metrics()),
                    running_meanwhile(self._keep_killing()),
                ):
                    await asyncio.gather(*(self._keep(number) for number in range(1, self._config.processes + 1)))
            finally:
                self._kill()
        return INTERRUPTED if self._was_interrupted and not self._status else self._status

    def _stop(self, number: int) -> None:
        """Answer a signal."""
        self._stops += 1
        self._stopping.set()
        if number == signal.SIGTERM and self._stops == 1:
            return self._drain()
        asyncio.get_running_loop().call_later(self._config.graces.all_s + MARGIN_S, self._kill)
        self._was_interrupted = self._was_interrupted or number == signal.SIGINT
        if self._stops > 2 or not self._hub.workers:
            self._kill()
        for worker, process in self._running.items():
            if not self._hub.is_open(worker):
                _send(process, signal.SIGTERM)
        self._hub.ask_to_leave()

    def _drain(self) -> None:
        """Have all workers end when their streams have, and kill what is left after their time."""
        for process in self._running.values():
            _send(process, signal.SIGTERM)
        drain_s = self._config.drain_delay_s + self._config.drain_timeout_s
        asyncio.get_running_loop().call_later(drain_s + self._config.graces.all_s + MARGIN_S, self._kill)

    def _kill(self) -> None:
        for process in self._running.values():
            _send(process, signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        """Keep one worker running until all are to stop, or it can't be brought up."""
        failed_starts, pause_s = 0, FIRST_PAUSE_S
        while not self._stopping.is_set():
            began_s = self._clock.now()
            status, has_opened = await self._run_once(number)
            is_forked = status is not None
            if self._stopping.is_set():
                return self._note_status(status)
            if is_forked and not self._has_opened:
                return self._give_up(status)
            # The machine that can't fork is no fault of the worker's; those that run go on.
            failed_starts = 0 if has_opened or (not is_forked and self._running) else failed_starts + 1
            if failed_starts >= MAX_FAILED_STARTS:
                logger.error("process %d does not come up; stopping", number)
                return self._give_up(status)
            if self._clock.now() - began_s >= SETTLED_S:
                pause_s = FIRST_PAUSE_S
            logger.error("process %d ended with status %s; starting it again in %.1f s", number, status, pause_s)
            with suppress(asyncio.TimeoutError):
                async with timeout(pause_s):
                    await self._stopping.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run_once(self, number: int) -> tuple[int | None, bool]:
        """Run one worker; return its status, None where it was not forked, and whether it has opened its doors."""
        try:
            process, ours = await self._fork(number)
        except OSError as error:
            logger.error("process %d can't be forked: %s", number, error)
            return None, False
        self._running[number] = process
        if self._stopping.is_set():
            _send(process, signal.SIGTERM)
        link = await open_link(ours, self._hub.handlers(number))
        has_opened = False

        async def note_opened() -> None:
            nonlocal has_opened
            while not self._hub.is_open(number):
                await asyncio.sleep(0.02)
            logger.info("process %d is open (pid %d)", number, process.pid)
            has_opened = self._has_opened = True

        try:
            async with running_meanwhile(note_opened()):
                status = await process.wait()
        finally:
            link.close()
            del self._running[number]
        return status, has_opened

    async def _fork(self, number: int) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """Start one worker; return it with our end of its socket pair."""
        ours, theirs = socket.socketpair()
        try:
            environment = {**os.environ, WORKER_VARIABLE: f"{number}:{theirs.fileno()}"}
            command = [sys.executable, "-m", "gateway", *self._argv]
            return await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=[theirs.fileno()]), ours
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def _note_status(self, status: int | None) -> None:
        # NOTE: SIGTERM kills a worker that has no handler for it yet.
        if status not in (0, -signal.SIGTERM, None):
            self._status = self._status or 1

    def _give_up(self, status: int | None) -> None:
        """Stop all: what fails in one worker fails in every one."""
        self._status = status if status is not None and status > 0 else 1
        self._stopping.set()
        self._drain()

    async def _keep_killing(self) -> None:
        """Kill workers that hang: they take connections and answer none. Others take their places."""
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            for number in self._hub.silent():
                if (process := self._running.get(number)) is not None:
                    logger.error("process %d hangs: it has given no sign of life for too long; killing it", number)
                    _send(process, signal.SIGKILL)

    async def _keep_noting_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_INTERVAL_S)
            await self._hub.metrics()


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
