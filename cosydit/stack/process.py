"""One service process: its log, its readiness, its end; what signals mean to it, and its share of the CPU's cores.

When the process that started a service is gone, also after a SIGKILL, Linux sends the service SIGTERM. What a service
starts inherits a mark in its environment, by which it is found when the service is killed: Triton, for example, has a
session of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from servicekit.clock import Clock, SystemClock
from servicekit.logs import PlainError
from servicekit.process import ended_with_parent
from servicekit.settings import as_options
from token2wav_service.serving.process.server import free_ports

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.1
PROBE_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0
"""Seconds for an answer of a service under full load."""
LOG_TAIL_LINES = 25
DEFAULT_STOP_TIMEOUT_S = 40.0
HURRY_TIMEOUT_S = 5.0
"""Seconds from a second SIGTERM on, after which a service is killed: all of ours end at once then, with what they
started."""
GONE_TIMEOUT_S = 10.0
"""Seconds that the system may take to end what was killed."""
HTTP_OK = 200
MARK_VARIABLE = "COSYDIT_SERVICE"
"""Environment variable with the marks of a service and of those above it."""
_starter = ThreadPoolExecutor(1, "service-starter")
"""Starts all services: Linux takes the end of the thread that started a process for its parent's."""
_SWEEPS = 3
"""Rounds of killing: a process may start another one while the first round is under way."""


class ServiceStartError(PlainError):
    """A service did not become ready; the message ends with its last log lines."""


@dataclass(frozen=True)
class ServiceSpec:
    """How a service is started and how one sees that it is ready."""

    name: str
    command: Sequence[str]
    ready_url: str
    """URL that answers 200 when the service can work."""
    log_path: Path
    env: Mapping[str, str] | None = None
    """Variables added to our own environment."""
    stop_timeout_s: float = DEFAULT_STOP_TIMEOUT_S
    """Seconds that the process may take to end when asked to, before it is asked to hurry, and then killed."""
    lives: Callable[[], bool] | None = None
    """Asks the service once, for seconds, whether it still works; None: it is not asked."""


class ServiceProcess:
    """Runs one service in a process group of its own; a context manager that stops it on exit."""

    def __init__(self, spec: ServiceSpec, clock: Clock | None = None) -> None:
        self.spec = spec
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._group: int | None = None
        """Id of the process group while it may have members."""
        self._mark = ""
        self._log_begins = 0
        """Bytes of the log that earlier runs wrote."""

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            ServiceStartError: it was not started.
        """
        if self._process is None:
            raise ServiceStartError(f"{self.spec.name} was not started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start the process; its output goes to the log."""
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        logger.info("starting %s: %s", self.spec.name, " ".join(self.spec.command))
        self._mark = secrets.token_hex(8)
        marks = f"{os.environ.get(MARK_VARIABLE, '')}/{self._mark}"
        with self.spec.log_path.open("ab") as log:
            self._log_begins = log.tell()
            self._process = _starter.submit(
                subprocess.Popen,
                ended_with_parent(self.spec.command),
                env={**os.environ, **(self.spec.env or {}), MARK_VARIABLE: marks},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).result()
        self._group = self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the service answers that it is ready.

        Raises:
            ServiceStartError: it exited, or took longer than `timeout_s`.
        """
        deadline = self._clock.now() + timeout_s
        while not answers_ok(self.spec.ready_url):
            if self.returncode is not None:
                raise ServiceStartError(f"{self.spec.name} exited with status {self.returncode}{self._log_tail()}")
            if self._clock.now() >= deadline:
                raise ServiceStartError(f"{self.spec.name} is not ready after {timeout_s:.0f} s{self._log_tail()}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Ask the service to end, ask it to hurry after its time, and kill what is left of it and of what it started.

        An interrupt kills at once. Harmless when the service has ended.
        """
        if self._process is None:
            return
        try:
            if self._process.poll() is None:
                self._ask_to_end(self._process)
        finally:
            self.kill()
            self._process.wait()
            self._await_gone()
            self._group = None

    def kill(self) -> None:
        """Kill the service and what it started, without waiting for their end; a signal handler may call this."""
        if self._group is None:
            return
        for _ in range(_SWEEPS):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
            left = _marked(self._mark)
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        name, longest_s = self.spec.name, self.spec.stop_timeout_s
        logger.info("stopping %s: it has up to %.0f s to finish what is under way", name, longest_s)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(longest_s)
            return
        except subprocess.TimeoutExpired:
            logger.warning("%s did not stop within %.0f s; asking it to end at once", name, longest_s)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(HURRY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s did not end at once; killing it and what it started", name)

    def _await_gone(self) -> None:
        deadline = self._clock.now() + GONE_TIMEOUT_S
        while left := _marked(self._mark):
            if self._clock.now() >= deadline:
                logger.error("%s: processes %s do not end, though they were killed", self.spec.name, left)
                return
            time.sleep(POLL_INTERVAL_S)

    def __enter__(self) -> ServiceProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _log_tail(self) -> str:
        with self.spec.log_path.open("rb") as log:
            log.seek(self._log_begins)
            lines = log.read().decode("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
        return f"; the end of {self.spec.log_path}:\n" + "\n".join(lines)


@contextmanager
def serving_llm(backend: str, model_dir: Path, log_path: Path, timeout_s: float, **options: str) -> Iterator[str]:
    """Have an LLM service of one's own on a free port while the context lasts, with further settings; give its URL.

    Raises:
        ServiceStartError: it did not become ready within `timeout_s`.
    """
    port = free_ports(1)[0]
    given = {"backend": backend, "model_dir": str(model_dir), "port": str(port), **options}
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "llm_service", *as_options(given)]
    with ServiceProcess(ServiceSpec("llm_service", command, f"{url}/health", log_path)) as service:
        service.wait_ready(timeout_s)
        yield url


def _marked(mark: str) -> list[int]:
    """Return the ids of the live processes that have a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def busy_ports(ports: Iterable[int]) -> list[int]:
    """Return those of our machine's TCP ports that somebody listens on."""
    busy = []
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                busy.append(port)
    return busy


def answers(url: str, timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Ask once whether somebody behind a URL answers at all: an error, and a connection that is closed, are answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=_any_certificate()):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return not isinstance(error.reason, TimeoutError | ConnectionRefusedError)
    except (OSError, http.client.HTTPException) as error:
        return not isinstance(error, TimeoutError)


def answers_ok(url: str, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Ask once whether a URL answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=_any_certificate()) as response:
            return int(response.status) == HTTP_OK
    except (OSError, http.client.HTTPException):
        # NOTE: if nobody listens on an ephemeral port, the probe may connect to itself and read its own request.
        return False


def _any_certificate() -> ssl.SSLContext:
    """Return a context for our own gateway, whose certificate is for its callers' name of it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def read_json(url: str) -> Any:
    """Return what a URL answers, read as JSON.

    Raises:
        OSError: it does not answer, or not with 200, or not in HTTP.
    """
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as response:
            return json.load(response)
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not answer in HTTP ({error!r})") from error


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals(kill: Callable[[], None]) -> Iterator[None]:
    """Have the first of `STOP_SIGNALS` raise KeyboardInterrupt, and each one after it call `kill`.

    A signal that the command was started to ignore, as by nohup, stays ignored. Signals reach the main thread: in any
    other one nothing changes. `kill` is called between any two instructions and must not wait.
    """
    is_stopping = False

    def answer(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            kill()
            return
        is_stopping = True
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS if is_main}
    answered = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in answered:
        signal.signal(number, answer)
    try:
        yield
    finally:
        for number in answered:
            signal.signal(number, before[number])


def cpu_threads(token2wav_servers: int = 1, cores: int | None = None) -> tuple[int, int]:
    """Return the threads of the LLM, half of the cores, and of each token2wav server, which share the other half.

    Everybody has at least one. Without `cores` those are counted that this process may use.
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    llm = max(1, cores // 2)
    return llm, max(1, (cores - llm) // token2wav_servers)
