"""A server that can't work any more is found out and ended, so that whoever started it starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.token2wav_service.serving.conftest import FAKE_ENGINE_MODEL
from tests.token2wav_service.serving.test_status_and_drain import SERVER_WAIT_S, launched
from tests.workers import wait_until
from token2wav_service.serving.process.health import FAILURES_TO_END, HealthWatch, ask_model, main, model_processes
from token2wav_service.serving.process.installation import ServerOptions
from token2wav_service.serving.process.server import TritonProcess

EXIT_TIMEOUT_S = 2


class FakeServer:
    """A server that is ready, runs and has two model processes."""

    def __init__(self, repository: Path) -> None:
        (repository / "token2wav_dit").mkdir()
        self.options = ServerOptions(repository, exit_timeout_s=EXIT_TIMEOUT_S)
        self.pid: int | None = 1
        self.returncode: int | None = None
        self.ready = True
        self.processes = {11, 12}
        self.trouble: str | None = None

    def is_ready(self) -> bool:
        return self.ready

    def watch(self) -> HealthWatch:
        return HealthWatch(self, lambda address: self.trouble, lambda pid: self.processes)


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return FakeServer(tmp_path)


def test_a_well_server_goes_on(server: FakeServer) -> None:
    watch = server.watch()
    assert [watch.look() for _ in range(10)] == [None] * 10


def test_a_server_that_still_loads_is_left_alone(server: FakeServer) -> None:
    server.ready, server.trouble = False, "not there yet"
    watch = server.watch()
    assert [watch.look() for _ in range(10)] == [None] * 10


def test_a_model_that_does_not_answer_ends_the_server_after_some_looks(server: FakeServer) -> None:
    watch = server.watch()
    watch.look()
    server.trouble = "no answer"
    assert [watch.look() for _ in range(FAILURES_TO_END)] == [None] * (FAILURES_TO_END - 1) + ["no answer"]


def test_one_answer_between_makes_good(server: FakeServer) -> None:
    watch = server.watch()
    watch.look()
    for trouble in ("late", "late", None) * 4:
        server.trouble = trouble
        assert watch.look() is None


def test_a_lost_process_of_any_model_ends_the_server(server: FakeServer) -> None:
    watch = server.watch()
    watch.look()
    server.processes = {11}
    assert "process 12 is gone" in [watch.look() for _ in range(FAILURES_TO_END)][-1]  # type: ignore[operator]


def test_a_server_that_stops_by_itself_has_its_exit_timeout(server: FakeServer) -> None:
    watch = server.watch()
    watch.look()
    server.ready, server.trouble = False, "stopping"
    looks = [watch.look() for _ in range(FAILURES_TO_END + EXIT_TIMEOUT_S)]
    assert looks[:-1] == [None] * (len(looks) - 1) and looks[-1] == "stopping"


@pytest.mark.servers
def test_a_killed_model_process_ends_the_server_with_an_error(tmp_path: Path) -> None:
    with launched(tmp_path, FAKE_ENGINE_MODEL) as (process, _):
        (stub,) = _stubs(process.pid)
        os.kill(stub, signal.SIGKILL)
        assert process.wait(SERVER_WAIT_S) not in (0, None)
    log = (tmp_path / "log").read_text()
    assert "ending the server, which can't work any more" in log
    assert f"process {stub} is gone" in log or "not healthy" in log


@pytest.mark.servers
def test_the_health_check_asks_the_model_where_triton_says_all_is_well(fake_engine_server: TritonProcess) -> None:
    address = fake_engine_server.options.http_address
    assert main([f"--address={address}"]) == 0
    assert fake_engine_server.pid is not None
    (stub,) = model_processes(fake_engine_server.pid)
    os.kill(stub, signal.SIGKILL)
    wait_until(lambda: not model_processes(fake_engine_server.pid or 0), "the process's end")
    assert _triton_says(address) in (200, None)
    trouble = ask_model(address) or ""
    assert "not healthy" in trouble or "does not answer" in trouble
    assert main([f"--address={address}"]) == 1


def test_nobody_there_is_no_health(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--address=127.0.0.1:1"]) == 1
    assert "does not answer" in capsys.readouterr().err


def _triton_says(address: str) -> int | None:
    """The status of Triton's own readiness; None: Triton has ended with its model's process, as it does, rarely."""
    try:
        with urllib.request.urlopen(f"http://{address}/v2/health/ready") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return None


def _stubs(launcher_pid: int) -> set[int]:
    """The model processes of a launcher's server, once it watches them."""
    listed = subprocess.run(["pgrep", "-P", str(launcher_pid)], capture_output=True, text=True, check=True)
    (server_pid,) = map(int, listed.stdout.split())
    return model_processes(server_pid)
