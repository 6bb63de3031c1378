"""The parent of several workers: holds the ports and the ledger, replaces workers that end, and stops all together.

    ports bound ─► workers open their doors ─► SIGTERM: all drain ─► ends

A worker that dies or hangs takes its own streams with it and nothing else. A second SIGTERM, or an interrupt, closes
all doors at once; one more kills the workers, and so does time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from tempfile import mkdtemp

from gateway.config import GatewayConfig
from gateway.dialects.wyoming.settings import WYOMING_OPTION
from gateway.errors import ConfigError, GatewayError
from gateway.ledger import CallerLedger
from gateway.processes.ports import port_of, reserve_port
from gateway.processes.worker import LEAVE, Families, GatheredRegistry, Worker, lasting, merged
from gateway.telemetry import exposition
from gateway.telemetry.exposition import BEAT_INTERVAL_S, MAX_SILENCE_S
from servicekit.clock import SystemClock
from servicekit.process import ended_with_parent
from servicekit.tasks import running_meanwhile
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)

WORKER_VARIABLE = "COSYDIT_GATEWAY_WORKER"
"""Environment variable of a worker: NUMBER:DESCRIPTOR of its pipe to the parent:PATH of the ledger."""
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
    return Worker(int(number), int(descriptor), CallerLedger(SystemClock(), Path(path), int(number)))


def run_parent(config: GatewayConfig, argv: Sequence[str]) -> int:
    """Serve with as many processes as the config says until stopped; return the exit status.

    Args:
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
    missed_beats: int = 0
    """Number of times in a row that the parent looked for a beat, and none had come; it may have stood still itself."""
    is_open: bool = False

    @property
    def silence_s(self) -> float:
        return self.missed_beats * BEAT_INTERVAL_S

    def kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class _Parent:
    """One gateway's workers."""

    def __init__(self, config: GatewayConfig, argv: Sequence[str]) -> None:
        self._config = config
        self._argv = argv
        self._ledger_path = Path(_make_folder()) / "ledger"
        self._ledger = CallerLedger(SystemClock(), self._ledger_path)
        self._seats: dict[int, _Seat] = {}
        self._departed: Families = []
        """What workers counted that have ended."""
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
            stack.callback(self._ledger.remove)
            if (port := self._config.telemetry.metrics_port) is not None:
                registry = GatheredRegistry(lambda: merged(self._ledger.metrics()))
                stack.enter_context(exposition.metrics_port(registry, self._silence_s, self._config.host, port))
            try:
                async with running_meanwhile(self._keep_watching()):
                    await asyncio.gather(*(self._keep(number) for number in range(1, self._config.processes + 1)))
            finally:
                self._signal_all(signal.SIGKILL)
        return INTERRUPTED if self._was_interrupted and not self._status else self._status

    def _silence_s(self) -> float:
        """Return the seconds since the last beat of the worker that has been silent for longest; from any thread."""
        return max((seat.silence_s for seat in list(self._seats.values())), default=0.0)

    def _stop(self, number: int) -> None:
        """Answer a signal."""
        self._stops += 1
        self._stopping.set()
        if number == signal.SIGTERM and self._stops == 1:
            return self._drain()
        asyncio.get_running_loop().call_later(self._config.closing_s + MARGIN_S, self._signal_all, signal.SIGKILL)
        self._was_interrupted = self._was_interrupted or number == signal.SIGINT
        self._signal_all(LEAVE if self._stops <= 2 else signal.SIGKILL)

    def _drain(self) -> None:
        """Have all workers end when their streams have, and kill what is left after their time."""
        self._stopping.set()
        self._signal_all(signal.SIGTERM)
        longest_s = self._config.longest_stop_s + MARGIN_S
        asyncio.get_running_loop().call_later(longest_s, self._signal_all, signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for seat in self._seats.values():
            seat.kill(number)

    async def _keep(self, number: int) -> None:
        """Keep one worker running until all are to stop, or it can't be brought up."""
        failed_starts = 0
        while not self._stopping.is_set():
            try:
                status, has_opened = await self._run_once(number)
                failed_starts = 0 if has_opened else failed_starts + 1
            except OSError as error:  # the machine can't fork, which is no fault of the worker's; those that run go on
                logger.error("process %d can't be forked: %s", number, error)
                status, failed_starts = 0, failed_starts + (not self._seats)
            if self._stopping.is_set():
                if status not in (0, -signal.SIGTERM, -LEAVE):  # signals end a worker that has no handlers for them yet
                    self._status = self._status or 1
                return
            if failed_starts >= MAX_FAILED_STARTS or not self._has_opened:
                logger.error("process %d does not come up; stopping", number)
                self._status = max(status, 1)  # what fails in one worker fails in every one
                return self._drain()
            logger.error("process %d ended with status %s; starting it again in %.1f s", number, status, PAUSE_S)
            with suppress(asyncio.TimeoutError):
                async with timeout(PAUSE_S):
                    await self._stopping.wait()

    async def _run_once(self, number: int) -> tuple[int, bool]:
        """Run one worker; return its status, and whether it has opened its doors.

        Raises:
            OSError: the machine can't fork.
        """
        ours, theirs = os.pipe()
        with open(ours, "rb", buffering=0) as beats:
            try:
                told = f"{number}:{theirs}:{self._ledger_path}"
                command = ended_with_parent([sys.executable, "-m", "gateway", *self._argv])
                process = await asyncio.create_subprocess_exec(
                    *command, env={**os.environ, WORKER_VARIABLE: told}, pass_fds=[theirs]
                )
            finally:
                os.close(theirs)
            seat = self._seats[number] = _Seat(process)
            if self._stopping.is_set():
                seat.kill(signal.SIGTERM)
            loop = asyncio.get_running_loop()
            loop.add_reader(beats, self._hear, beats, number, seat)
            try:
                return await process.wait(), seat.is_open
            finally:
                loop.remove_reader(beats)
                del self._seats[number]
                self._forget(number)

    def _hear(self, beats: RawIOBase, number: int, seat: _Seat) -> None:
        if not beats.read(1024):
            asyncio.get_running_loop().remove_reader(beats)
            return
        seat.missed_beats = 0
        if not seat.is_open:
            seat.is_open = self._has_opened = True
            logger.info("process %d is open (pid %d)", number, seat.process.pid)

    def _forget(self, number: int) -> None:
        """Give back what a worker held that has ended, and keep what it counted."""
        try:
            told = self._ledger.metrics().get(number, [])
            self._departed = merged({0: self._departed, 1: lasting(told)})
            self._ledger.end_process(number, self._departed)
        except GatewayError:
            logger.exception("what process %d held is still counted", number)

    async def _keep_watching(self) -> None:
        """Kill workers that hang: they take connections and answer none. Others take their places."""
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            for number, seat in self._seats.items():
                seat.missed_beats += 1
                if seat.silence_s > (MAX_SILENCE_S if seat.is_open else START_TIMEOUT_S):
                    logger.error("process %d hangs: it has given no sign of life for too long; killing it", number)
                    seat.kill(signal.SIGKILL)
