"""What the workers of one run share, and what each has to itself."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from threading import Thread

import pytest
from filelock import FileLock

FIRST_PORT, PORTS_EACH, MAX_WORKERS = 20_000, 500, 24
"""Below the ports that Linux gives to outgoing connections and to whoever asks for any (32768 and up)."""


def _own_ports() -> Iterator[int]:
    """Yield this worker's ports round and round, from a place of its own in case two runs share the machine."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MAX_WORKERS
    offset = os.getpid()
    while True:
        yield FIRST_PORT + worker * PORTS_EACH + offset % PORTS_EACH
        offset += 1


_ports = _own_ports()


def free_ports(count: int) -> list[int]:
    """Return free TCP ports of 127.0.0.1 that no other worker takes, not even before they are used."""
    free: list[int] = []
    while len(free) < count:
        port = next(_ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        free.append(port)
    return free


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = 60.0) -> None:
    """Return when a condition holds; fail if it does not in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {patience_s:.0f} s"
        time.sleep(0.05)


class QuietHandler(BaseHTTPRequestHandler):
    """Answers without a word on stderr."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], tls: SSLContext | None = None) -> Iterator[int]:
    """Answer HTTP on a free port of 127.0.0.1, in threads of this process; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all workers of this run see."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first worker to need it makes, and all others read.

    Args:
        name: equal for equal contents.
        make: writes it; the folder is not there yet, its parent is.
    """
    folder = run_folder(factory) / "made_once" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


def is_whole() -> bool:
    """Return whether campaigns run at their whole length, as every night; else each proves the same for seconds."""
    return os.environ.get("COSYDIT_CAMPAIGNS") == "all"


def random_checkpoint(factory: pytest.TempPathFactory) -> Path:
    """Return a small random checkpoint of the whole system; nobody writes into it."""

    def make(folder: Path) -> None:
        from cosydit.stack.checkpoint.make_checkpoint import make_random_checkpoint

        make_random_checkpoint(folder, seed=0)

    return made_once(factory, "random-checkpoint", make)


def random_llm(factory: pytest.TempPathFactory) -> Path:
    """Return a small random LLM; nobody writes into it."""

    def make(folder: Path) -> None:
        from llm_service.checkpoint import make_random_llm

        make_random_llm(folder, seed=7)

    return made_once(factory, "random-llm", make)


def demo_checkpoint(factory: pytest.TempPathFactory) -> Path:
    """Return the demo voice's checkpoint; nobody writes into it."""
    from demo_voice.unpack import unpack

    return made_once(factory, "demo-checkpoint", unpack)
