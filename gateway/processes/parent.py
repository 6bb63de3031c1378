"""The parent of several workers: holds the ports and the ledger, replaces workers that end, and stops all together.

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
from pathlib import Path
from tempfile import mkdtemp

from gateway.config import GatewayConfig
from gateway.dialects.wyoming.settings import WYOMING_OPTION
from gateway.errors import ConfigError, GatewayError
from gateway.ledger import CallerLedger
from gateway.processes.ports import port_of, reserve_port
from gateway.processes.worker import (
    BEAT,
    LEAVE,
    OPENED,
    WARM,
    Families,
    Worker,
    gathered_registry,
    lasting,
    merged,
)
from gateway.telemetry import exposition
from gateway.telemetry.exposition import BEAT_INTERVAL_S, MAX_SILENCE_S
from servicekit.clock import SystemClock
from servicekit.tasks import running_meanwhile
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)

WORKER_VARIABLE = "COSYDIT_GATEWAY_WORKER"
"""Environment variable of a worker: NUMBER:DESCRIPTOR of its end of the socket pair:PATH of the ledger."""
START_TIMEOUT_S = 300.0
"""Seconds that a worker may take until its doors are open."""
PAUSE_S = 1.0
"""Seconds before a worker is started again."""
MAX_FAILED_STARTS = 5
"""Number of ends of one worker before it opened its doors, after which the gateway ends."""
MARGIN_S = 5.0
"""Seconds beyond its own longest time after which a worker that was asked to stop is killed."""
INTERRUPTED = 128 + signal.SIGINT


def worker_of(environment: MutableMapping[str, str]) -> Worker | None:
    """Return this process's part among several; None if it has no parent."""
    told = environment.pop(WORKER_VARIABLE, None)
    if told is None:
        return None
    number, descriptor, path = told.split(":", 2)
    ledger = CallerLedger(SystemClock(), Path(path), int(number))
    return Worker(int(number), socket.socket(fileno=int(descriptor)), ledger)


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
    wanted = [("--port", config.host, config.port), ("--grpc-port", config.host, config.grpc_port)]
    if (wyoming := config.wyoming) is not None and wyoming.shut_because is None:
        wanted.append((WYOMING_OPTION, wyoming.host, wyoming.port))
    for option, host, port in wanted:
        if port is None:
            continue
        try:
            reserved = reserve_port(host, port, option)
        except ConfigError as error:
            if option != WYOMING_OPTION or (wyoming is not None and wyoming.is_port_asked_for):
                raise
            logger.warning("Wyoming is off: %s", error)
            told += ["--wyoming-port", "0"]
            continue
        for each in reserved:
            ports.enter_context(each)
        told += [option.partition(",")[0], str(port_of(reserved))]
    return told


def _make_folder() -> str:
    try:
        return mkdtemp(prefix="cosydit-gateway-")
    except OSError as error:
        raise ConfigError(f"no folder can be made for what processes share ({error}); set TMPDIR to another") from error


@dataclass
class _Seat:
    """What the parent knows of one worker that runs."""

    process: asyncio.subprocess.Process
    end: socket.socket
    beat_s: float
    missed_beats: int = 0
    """Number of times in a row that the parent looked for a beat, and none had come."""
    is_open: bool = False
    is_warm: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether it hangs; a parent that stood still itself blames nobody."""
        return self.missed_beats * BEAT_INTERVAL_S > (MAX_SILENCE_S if self.is_open else START_TIMEOUT_S)

    def say(self, what: bytes) -> None:
        with suppress(OSError):
            self.end.send(what)

    def kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class _Parent:
    """One gateway's workers."""

    def __init__(self, config: GatewayConfig, argv: Sequence[str]) -> None:
        self._config = config
        self._argv = argv
        self._clock = SystemClock()
        self._ledger_path = Path(_make_folder()) / "ledger"
        self._ledger = CallerLedger(self._clock, self._ledger_path)
        self._seats: dict[int, _Seat] = {}
        self._departed: Families = []
        """What workers counted that have ended."""
        self._stops = 0
        """Number of signals that asked to end."""
        self._was_interrupted = False
        self._stopping = asyncio.Event()
        self._has_opened = self._is_warm = False
        """Whether any worker has opened its doors; whether all have been warm at once."""
        self._status = 0

    def silence_s(self) -> float:
        """Return the seconds since the last beat of the worker that has been silent for longest."""
        now_s = self._clock.now()
        return max((now_s - seat.beat_s for seat in list(self._seats.values())), default=0.0)

    async def run(self) -> int:
        """Serve; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        with ExitStack() as stack:
            stack.callback(self._ledger.remove)
            if (port := self._config.telemetry.metrics_port) is not None:
                registry = gathered_registry(lambda: merged(self._ledger.metrics()))
                stack.enter_context(exposition.metrics_port(registry, self.silence_s, self._config.host, port))
            try:
                async with running_meanwhile(self._keep_watching()):
                    await asyncio.gather(*(self._keep(number) for number in range(1, self._config.processes + 1)))
            finally:
                self._signal_all(signal.SIGKILL)
        return INTERRUPTED if self._was_interrupted and not self._status else self._status

    def _stop(self, number: int) -> None:
        """Answer a signal."""
        self._stops += 1
        self._stopping.set()
        if number == signal.SIGTERM and self._stops == 1:
            return self._drain()
        asyncio.get_running_loop().call_later(self._config.graces.all_s + MARGIN_S, self._signal_all, signal.SIGKILL)
        self._was_interrupted = self._was_interrupted or number == signal.SIGINT
        if self._stops > 2 or not self._seats:
            self._signal_all(signal.SIGKILL)
        for seat in self._seats.values():
            if not seat.is_open:
                seat.kill(signal.SIGTERM)
            seat.say(LEAVE)

    def _drain(self) -> None:
        """Have all workers end when their streams have, and kill what is left after their time."""
        self._signal_all(signal.SIGTERM)
        drain_s = self._config.drain_delay_s + self._config.drain_timeout_s + self._config.graces.all_s + MARGIN_S
        asyncio.get_running_loop().call_later(drain_s, self._signal_all, signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for seat in self._seats.values():
            seat.kill(number)

    async def _keep(self, number: int) -> None:
        """Keep one worker running until all are to stop, or it can't be brought up."""
        failed_starts = 0
        while not self._stopping.is_set():
            status, has_opened = await self._run_once(number)
            is_forked = status is not None
            if self._stopping.is_set():
                return self._note_status(status)
            # The machine that can't fork is no fault of the worker's; those that run go on.
            failed_starts = 0 if has_opened or (not is_forked and self._seats) else failed_starts + 1
            if failed_starts >= MAX_FAILED_STARTS or (is_forked and not self._has_opened):
                logger.error("process %d does not come up; stopping", number)
                return self._give_up(status)
            logger.error("process %d ended with status %s; starting it again in %.1f s", number, status, PAUSE_S)
            with suppress(asyncio.TimeoutError):
                async with timeout(PAUSE_S):
                    await self._stopping.wait()

    async def _run_once(self, number: int) -> tuple[int | None, bool]:
        """Run one worker; return its status, None where it was not forked, and whether it has opened its doors."""
        try:
            process, ours = await self._fork(number)
        except OSError as error:
            logger.error("process %d can't be forked: %s", number, error)
            return None, False
        seat = self._seats[number] = _Seat(process, ours, self._clock.now())
        if self._stopping.is_set():
            seat.kill(signal.SIGTERM)
        if self._is_warm:
            seat.say(WARM)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._hear, number, seat)
        try:
            return await process.wait(), seat.is_open
        finally:
            loop.remove_reader(ours)
            ours.close()
            del self._seats[number]
            self._forget(number)

    def _hear(self, number: int, seat: _Seat) -> None:
        try:
            heard = seat.end.recv(1024)
        except OSError:
            heard = b""
        if not heard:
            asyncio.get_running_loop().remove_reader(seat.end)
        if BEAT in heard:
            seat.beat_s, seat.missed_beats = self._clock.now(), 0
        if OPENED in heard:
            seat.is_open = self._has_opened = True
            logger.info("process %d is open (pid %d)", number, seat.process.pid)
        seat.is_warm = seat.is_warm or WARM in heard
        is_all = len(self._seats) == self._config.processes and all(each.is_warm for each in self._seats.values())
        if is_all and not self._is_warm:
            self._is_warm = True
            logger.info("all %d processes are warm; ready", self._config.processes)
            for each in self._seats.values():
                each.say(WARM)

    def _forget(self, number: int) -> None:
        """Give back what a worker held that has ended, and keep what it counted."""
        try:
            self._ledger.end_process(number)
            told = self._ledger.metrics().get(number, [])
            self._departed = merged({0: self._departed, 1: lasting(told)})
            self._ledger.tell_metrics({0: self._departed, number: None})
        except GatewayError:
            logger.exception("what process %d held is still counted", number)

    async def _fork(self, number: int) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """Start one worker; return it with our end of its socket pair."""
        ours, theirs = socket.socketpair()
        try:
            told = f"{number}:{theirs.fileno()}:{self._ledger_path}"
            environment = {**os.environ, WORKER_VARIABLE: told}
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

    async def _keep_watching(self) -> None:
        """Kill workers that hang: they take connections and answer none. Others take their places."""
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            for number, seat in self._seats.items():
                seat.missed_beats += 1
                if seat.is_silent:
                    logger.error("process %d hangs: it has given no sign of life for too long; killing it", number)
                    seat.kill(signal.SIGKILL)
