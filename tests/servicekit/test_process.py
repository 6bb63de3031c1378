"""A server and its own process: a taken port, a full disk, threads that take turns, memory that is given back."""

from __future__ import annotations

import gc
import logging
import resource
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette

from servicekit.process import (
    YOUNG_OBJECTS,
    exempt_startup_objects,
    failing_plainly,
    return_freed_memory,
)
from tests import ROOT
from tests.workers import random_checkpoint

pytestmark = pytest.mark.slow

TOLD = "the port is taken; give another"
LIMIT_BYTES = 2_000_000
PATIENCE_S = 120


def application(error: Exception) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        for each in (error,):
            raise each
        yield

    return Starlette(lifespan=lifespan)


@pytest.mark.parametrize(
    ("service", "imported"),
    [
        ("gateway", "gateway.serving"),
        ("llm_service", "llm_service.backends"),
        ("token2wav_service.serving", "token2wav_service.serving.assemble"),
        ("cosydit.cli.main", "cosydit.cli.say"),
    ],
)
def test_an_interrupt_while_a_service_is_imported_leaves_no_traceback(service: str, imported: str) -> None:
    program = f"""
import runpy, sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
runpy.run_module({service!r}, run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode in (-signal.SIGINT, 128 + signal.SIGINT) and ended.stderr.count("\n") <= 1, ended.stderr


@pytest.mark.parametrize(("error", "is_plain"), [(ValueError(TOLD), True), (KeyError(TOLD), False)])
async def test_an_expected_error_at_the_start_is_one_line_and_others_keep_their_trace(
    error: Exception, is_plain: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("uvicorn", "uvicorn.error"):  # another server of this process may have set them up
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    ended: list[None] = []
    monkeypatch.setattr("servicekit.process.end_soon", lambda: ended.append(None))
    app = failing_plainly(application(error), ValueError, is_serving=lambda: server.started)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    with caplog.at_level(logging.ERROR, "uvicorn.error"), pytest.raises(SystemExit):
        await server.serve()
    assert ended
    assert (TOLD in caplog.text, "Traceback" in caplog.text) == (True, not is_plain)
    assert not server.started


STUCK = """
import asyncio, contextlib, ctypes, uvicorn
from starlette.applications import Starlette
from servicekit import process

process._END_S = 1.0

async def for_ever():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            {stuck}

@contextlib.asynccontextmanager
async def lifespan(_):
    asyncio.create_task(for_ever(), name="stuck")
    await asyncio.sleep(0)
    raise ValueError("the port is taken")
    yield

app = process.failing_plainly(Starlette(lifespan=lifespan), ValueError, is_serving=lambda: False)
uvicorn.run(app, port=0)
"""
WAITING = "await asyncio.sleep(600)"
HOLDING_THE_INTERPRETER = "await asyncio.sleep(0.1); ctypes.PyDLL(None).sleep(600)"


@pytest.mark.parametrize("stuck", [WAITING, HOLDING_THE_INTERPRETER])
def test_a_server_that_could_not_start_ends_although_a_task_does_not(stuck: str) -> None:
    status, output = run_script(STUCK.format(stuck=stuck))
    assert (status, "the port is taken" in output) == (1, True), output


SHUT = """
import asyncio, contextlib, sys, uvicorn
from starlette.applications import Starlette
from servicekit import process

process._END_S = 1.0

@contextlib.asynccontextmanager
async def lifespan(_):
    yield
    await asyncio.sleep(600)

app = process.failing_plainly(Starlette(lifespan=lifespan), is_serving=lambda: server.started)
server = uvicorn.Server(uvicorn.Config(app, port=int(sys.argv[1])))
server.run()
"""


def test_a_server_whose_port_is_taken_ends_although_its_shutdown_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, output = run_script(SHUT, str(taken.getsockname()[1]))
    assert (status, "address already in use" in output, "Timeout" in output) == (1, True, True), output


HANGING = """
import asyncio, contextlib, os, signal, sys, uvicorn
from starlette.applications import Starlette
from gateway.lifecycle import shutdown
from servicekit import process

process._END_S = 0.5

async def drain():
    if {hangs_at!r} == "drain":
        await asyncio.sleep(600)

@contextlib.asynccontextmanager
async def lifespan(_):
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.{name})
    yield
    await asyncio.sleep(600)

config = uvicorn.Config(Starlette(lifespan=lifespan), port=0)
shutdown.DrainingServer(config, drain, drain_s=0.0, close_s=0.0).run()
"""


@pytest.mark.parametrize(("name", "hangs_at"), [("SIGTERM", "drain"), ("SIGINT", "close")])
def test_a_gateway_that_hangs_when_it_is_to_stop_is_ended(name: str, hangs_at: str) -> None:
    status, output = run_script(HANGING.format(name=name, hangs_at=hangs_at))
    assert (status, "Timeout" in output) == (1, True), output


LEAVING = """
import atexit, sys, time
from servicekit.process import run_and_leave

def main():
    atexit.register(time.sleep, 600)
    print("written", end="")
    {end}

run_and_leave(main)
"""


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("return 5", 5, "written"),
        ("sys.exit()", 0, "written"),
        ("sys.exit('no such file')", 1, "no such file"),
        ("raise ValueError('unexpected')", 1, "unexpected"),
    ],
)
def test_a_server_leaves_with_its_status_and_waits_for_nothing_else(end: str, status: int, told: str) -> None:
    left, output = run_script(LEAVING.format(end=end))
    assert (left, "written" in output, told in output) == (status, True, True), output


def run_script(script: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def run(*command: str, limit_bytes: int | None = None) -> tuple[int, str]:
    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=limit,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("option", ["--grpc-port", "--wyoming-port"])
def test_a_gateway_whose_port_is_taken_names_it(tmp_path_factory: pytest.TempPathFactory, option: str) -> None:
    checkpoint = random_checkpoint(tmp_path_factory)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--grpc-port": "0", "--wyoming-port": "0", option: port}
        given = [word for pair in ports.items() for word in pair]
        folders = ["--tokenizer-dir", str(checkpoint / "llm"), "--voices-dir", str(checkpoint / "voices")]
        status, output = run("gateway", *folders, *given)
    assert (status != 0, port in output, "Traceback" in output) == (True, True, False), output


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    command = ("cosydit.cli.main", "checkpoint", "unpack-demo", str(tmp_path / "made"))
    status, output = run(*command, limit_bytes=LIMIT_BYTES)
    assert (status, "can't be written" in output, "Traceback" in output) == (1, True, False), output
    assert list(tmp_path.iterdir()) == []


RAISING = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from servicekit.process import raise_open_files
allowed = raise_open_files()
print("raised", resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), allowed > 64)
"""


def test_a_process_may_open_as_many_files_as_it_may_ask_for() -> None:
    assert run_script(RAISING) == (0, "raised True True\n")


class Node:
    """Holds itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_only_what_comes_later_is_looked_at() -> None:
    kept, before = [Node()], gc.get_threshold()
    try:
        exempt_startup_objects()
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
        assert not any(each is kept for each in gc.get_objects())
        later = weakref.ref(Node())
        gc.collect()
        assert later() is None
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    assert any(each is kept for each in gc.get_objects())


def test_what_the_c_library_keeps_goes_back_to_the_kernel() -> None:
    blocks = [bytes([number % 256]) * 100_000 for number in range(1000)]  # below what malloc maps apart
    kept = blocks[::100]  # the last of the heap is in use: free() alone gives nothing back
    del blocks
    before = _resident_pages()
    return_freed_memory()
    assert _resident_pages() < before - 10_000
    assert len(kept) == 10


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
