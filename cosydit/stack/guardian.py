"""`python -m cosydit.stack.guardian PARENT-PID` ends the services of a process that is gone, also after a SIGKILL.

    start ──► "MARK GROUP" on the guardian's standard input      the service is watched
    stop  ──► "MARK forget"
    the parent is gone ──► SIGTERM to all services ──► after `GRACE_S`: SIGKILL

A process that starts services has one guardian; one that was killed is replaced. A service is found by its process
group, and on Linux also by a mark in the environment, which whatever it starts inherits: Triton, for example, has a
session of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

MARK_VARIABLE = "COSYDIT_SERVICE"
"""Environment variable with the marks of a service and of those above it, parted by slashes."""
GRACE_S = 5.0
"""Seconds that services may take to end when the process that started them is gone."""
FORGET = "forget"
_POLL_INTERVAL_S = 0.2
_SWEEPS = 3
"""Rounds of killing: a process may start another one while the first round is under way."""
_UNKNOWN_GROUP = 0
_CLOSE_TIMEOUT_S = 2 * GRACE_S


def mark_below(mark: str, environment: Mapping[str, str]) -> str:
    """Return the value of `MARK_VARIABLE` for a service that a process with this environment starts."""
    above = environment.get(MARK_VARIABLE)
    return f"{above}/{mark}" if above else mark


def marked(mark: str) -> list[int]:
    """Return the ids of the live processes that have a mark; none where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if _has_mark(mark, (folder / "environ").read_bytes()):
                found.append(int(folder.name))
    return found


def kill_service(group: int, mark: str) -> None:
    """Kill a service and all that it started, without waiting for their end."""
    for _ in range(_SWEEPS):
        if group != _UNKNOWN_GROUP:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        left = marked(mark)
        if not left:
            return
        for pid in left:
            _send(pid, signal.SIGKILL)


class GuardianClient:
    """A process's side of its guardian, which is started with the first service."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._watched: dict[str, int] = {}
        atexit.register(self.close)

    def watch(self, mark: str, group: int = _UNKNOWN_GROUP) -> None:
        """Have a service ended when this process is gone; called again once its process group is known."""
        with self._lock:
            self._watched[mark] = group
            self._tell(f"{mark} {group}\n")

    def forget(self, mark: str) -> None:
        """Take a service that has ended off the watch."""
        with self._lock:
            if self._watched.pop(mark, None) is not None:
                self._tell(f"{mark} {FORGET}\n")

    def close(self) -> None:
        """Let the guardian end; services that are still watched end too."""
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                return
            process, self._process = self._process, None
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_TIMEOUT_S)

    def _tell(self, line: str) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self._write(line)
                return
        self._renew()

    def _write(self, lines: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(lines.encode())
        self._process.stdin.flush()

    def _start(self) -> None:
        # NOTE: its environment has no mark: it must outlive this process, whoever kills that.
        environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cosydit.stack.guardian", str(self._owner)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self._replace, args=(self._process,), name="guardian", daemon=True).start()

    def _replace(self, process: subprocess.Popen[bytes]) -> None:
        """Start another guardian when one has ended that should live."""
        process.wait()
        while True:
            time.sleep(_POLL_INTERVAL_S)
            with self._lock, contextlib.suppress(OSError):
                if self._process is process and self._owner == os.getpid():
                    self._renew()
                return

    def _renew(self) -> None:
        self._start()
        self._write("".join(f"{mark} {group}\n" for mark, group in self._watched.items()))


guard = GuardianClient()
"""Of this process."""


def main() -> None:
    """Watch until the parent is gone, and end what it has left."""
    parent = int(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[str, int] = {}
    rest = b""
    while True:
        if not select.select([0], [], [], _POLL_INTERVAL_S)[0]:
            if os.getppid() != parent:
                break
            continue
        # What the parent has told is read even if it is gone by now: it may be killed before this process runs.
        told = os.read(0, 1 << 16)
        if not told:
            break
        *lines, rest = (rest + told).split(b"\n")
        for line in lines:
            mark, _, group = line.decode().partition(" ")
            if group == FORGET:
                watched.pop(mark, None)
            else:
                watched[mark] = int(group)
    _end(watched)


def _end(watched: Mapping[str, int]) -> None:
    for mark, group in watched.items():
        leaders = [group] if group != _UNKNOWN_GROUP else marked(mark)
        for pid in leaders:
            _send(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(_is_left(mark, group) for mark, group in watched.items()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
    for mark, group in watched.items():
        kill_service(group, mark)


def _is_left(mark: str, group: int) -> bool:
    if sys.platform == "linux":
        return bool(marked(mark))
    with contextlib.suppress(OSError):
        os.killpg(group, 0)
        return True
    return False


def _has_mark(mark: str, environment: bytes) -> bool:
    beginning = f"{MARK_VARIABLE}=".encode()
    values = (entry[len(beginning) :] for entry in environment.split(b"\0") if entry.startswith(beginning))
    return any(mark.encode() in value.split(b"/") for value in values)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
