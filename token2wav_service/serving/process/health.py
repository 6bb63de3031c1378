"""Tells whether a tritonserver can still work, and lets its streams end: asks its token2wav model for its status.

Triton itself does not tell. After a model process was killed, its health, its readiness and the model's readiness stay
good, and the process never comes back (seen with 2.51). Nor does it let streams end: from its SIGTERM on it refuses
every request, also a stream's next chunk; `--exit-timeout-secs` only waits for the chunks under way.

Run as a program it asks the model once, for the health checks of containers: exit status 0 if the model answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from token2wav_service.contract import TOKEN2WAV_MODEL, Operation, ServerStatus
from token2wav_service.serving.process.installation import DEFAULT_HTTP_PORT, STUB_NAME

if TYPE_CHECKING:
    from token2wav_service.serving.process.server import TritonProcess

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
FAILURES_TO_END = 3
"""Number of failed looks in a row after which the server is ended."""
ANSWER_TIMEOUT_S = 10.0
"""Seconds for the model's status, which costs it next to nothing; more than a machine under full load needs."""
DRAIN_INTERVAL_S = 0.2
_PROBE_TIMEOUT_S = 2.0
_PROC = Path("/proc")
_SHOWN_CHARACTERS = 200


def ask_model(address: str, timeout_s: float = ANSWER_TIMEOUT_S) -> str | None:
    """Ask token2wav_dit for its status, by Triton's HTTP.

    Args:
        address: host:port of Triton's HTTP.
        timeout_s: how long the answer may take.

    Returns:
        None if it answered, else what is wrong.
    """
    try:
        status, text = _ask(address, timeout_s)
    except (OSError, http.client.HTTPException) as error:
        return f"{TOKEN2WAV_MODEL} does not answer ({error!r})"
    return None if status == http.client.OK else f"{TOKEN2WAV_MODEL} answers {text[:_SHOWN_CHARACTERS]}"


def open_streams(address: str) -> int | None:
    """Return how many streams token2wav_dit has open; 0 if nobody listens, None if it did not answer in time."""
    try:
        _, text = _ask(address, _PROBE_TIMEOUT_S)
        return ServerStatus.from_json(json.loads(text)["status"]).open_streams
    except ConnectionRefusedError:
        return 0
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None


def drain(process: TritonProcess, timeout_s: float, hurry: threading.Event) -> bool:
    """Refuse new streams and wait for the open ones, `timeout_s` at most and until `hurry` is set.

    Returns:
        Whether none is left; True as well for a server that has no such model or has exited. A server that is too
        busy to say is asked again.
    """
    process.raise_drain_flag()
    ends_s = time.monotonic() + timeout_s
    has_model = _has_model(process)
    while has_model and process.returncode is None and open_streams(process.options.http_address) != 0:
        if hurry.is_set() or time.monotonic() >= ends_s:
            return False
        hurry.wait(DRAIN_INTERVAL_S)
    return True


def _has_model(server: TritonProcess) -> bool:
    return (server.options.model_repository / TOKEN2WAV_MODEL).is_dir()


def _ask(address: str, timeout_s: float) -> tuple[int, str]:
    """Return the HTTP status and the body of the answer to a question for the model's status."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        body = json.dumps({"operation": Operation.STATUS.value})
        connection.request("POST", f"/v2/models/{TOKEN2WAV_MODEL}/generate", body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def model_processes(server_pid: int) -> set[int]:
    """Return the process ids of a server's model processes that live; one that was killed is not among them."""
    return {pid for pid in _children(server_pid) if is_model_process(pid)}


class HealthWatch:
    """Looks at a server again and again, from the moment on when all its models are ready."""

    def __init__(
        self,
        server: TritonProcess,
        ask: Callable[[str], str | None] = ask_model,
        processes: Callable[[int], set[int]] = model_processes,
    ) -> None:
        """Keep whom to look at; nobody was asked yet.

        Args:
            server: a started server.
            ask: see `ask_model`.
            processes: see `model_processes`.
        """
        self._server = server
        self._ask = ask
        self._processes = processes
        self._has_model = _has_model(server)
        self._known: set[int] | None = None
        self._failures = 0

    def look(self) -> str | None:
        """Look once; return why the server must be ended, or None while it may go on."""
        if self._server.returncode is not None or self._server.pid is None:
            return None
        if self._known is None:
            if self._server.is_ready():
                self._known = self._processes(self._server.pid)
            return None
        trouble = self._trouble(self._server.pid, self._known)
        if trouble is None:
            self._failures = 0
            return None
        self._failures += 1
        # A server that says itself that it is not ready stops already, and may answer who is there.
        allowed = FAILURES_TO_END + (0 if self._server.is_ready() else self._server.options.exit_timeout_s)
        logger.warning("the server can't work (%d of %d): %s", self._failures, allowed, trouble)
        return trouble if self._failures >= allowed else None

    def run(self, stopping: threading.Event, on_lost: Callable[[str], None]) -> None:
        """Look until `stopping` is set or the server is lost, which `on_lost` is told once."""
        while not stopping.wait(LOOK_INTERVAL_S):
            if (trouble := self.look()) is not None:
                on_lost(trouble)
                return

    def _trouble(self, pid: int, known: set[int]) -> str | None:
        lost = known - self._processes(pid)
        if lost:
            return f"model process {', '.join(map(str, sorted(lost)))} is gone"
        return self._ask(self._server.options.http_address) if self._has_model else None


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for listing in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            children += map(int, listing.read_text().split())
        except OSError:  # that thread has ended
            continue
    return children


def is_model_process(pid: int) -> bool:
    """Whether a process is a living model process: a killed one has no command line until Triton collects it."""
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return command.partition(b"\0")[0].endswith(STUB_NAME.encode())


def main(argv: list[str] | None = None) -> int:
    """Ask the model once; return 0 if it answers."""
    args = parser().parse_args(argv)
    trouble = ask_model(args.address, args.timeout_s)
    if trouble is not None:
        sys.stderr.write(f"{trouble}\n")
    return 0 if trouble is None else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the health check's options."""
    made = argparse.ArgumentParser(prog="python -m token2wav_service.serving.process.health", description=__doc__)
    address = f"127.0.0.1:{DEFAULT_HTTP_PORT}"
    made.add_argument("--address", default=address, help="host:port of Triton's HTTP service (default %(default)s)")
    made.add_argument(
        "--timeout-s", type=float, default=ANSWER_TIMEOUT_S, help="seconds to wait for the answer (default %(default)s)"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
