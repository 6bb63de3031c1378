"""NVIDIA's MPS: used where it runs, started and stopped where it doesn't, and said where it can't be had."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cosydit.stack import mps
from cosydit.stack.mps import mps_running, start_mps
from servicekit.gpu_host import MPS_VARIABLE

Calls = list[tuple[str, str]]


class FakeDaemon:
    """Answers as the control program does; its daemon leaves a socket where its pipes are."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.calls: Calls = []
        self.can_start = True

    def run_at(self, pipes: Path) -> None:
        pipes.mkdir(parents=True, exist_ok=True)
        (pipes / "control").touch()
        self.running.add(str(pipes))

    def __call__(self, command: Sequence[str], text: str, environment: Mapping[str, str]) -> bool:
        pipes = environment[MPS_VARIABLE]
        self.calls.append((" ".join(command[1:]) or text.strip(), pipes))
        if "-d" in command:
            if self.can_start:
                self.run_at(Path(pipes))
            return self.can_start
        if text == "quit\n":
            self.running.discard(pipes)
            return True
        return pipes in self.running


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a host's folder: the program is on PATH, nothing is named, our pipes lie there."""
    (tmp_path / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(MPS_VARIABLE, raising=False)
    monkeypatch.setattr(mps, "own_pipes", lambda: tmp_path / "own")
    monkeypatch.setattr(mps, "SYSTEM_PIPES", tmp_path / "system")
    return tmp_path


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    made = FakeDaemon()
    monkeypatch.setattr(mps, "run_control", made)
    return made


def test_a_daemon_is_started_for_the_services_and_stopped_with_them(host: Path, daemon: FakeDaemon) -> None:
    with mps_running(host) as use:
        assert use.is_ours and use.note.startswith("on: a daemon started here")
        assert os.environ[MPS_VARIABLE] == str(host / "own"), "services inherit it"
        assert daemon.running == {str(host / "own")}
    assert not daemon.running and MPS_VARIABLE not in os.environ
    assert daemon.calls[-1] == ("quit", str(host / "own"))


def test_a_daemon_is_left_alone_where_mps_is_off(
    host: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSYDIT_MPS", "off")
    daemon.run_at(host / "system")
    with mps_running(host) as use:
        assert use.note.startswith("off: COSYDIT_MPS=off") and not use.is_ours
        assert not Path(os.environ[MPS_VARIABLE]).exists(), "else CUDA finds the system's daemon by itself"
    assert not daemon.calls and MPS_VARIABLE not in os.environ


def test_a_client_of_the_daemon_does_not_wait_for_its_end(host: Path, daemon: FakeDaemon) -> None:
    asked = host / "asked"
    program = host / "nvidia-cuda-mps-control"
    # The daemon's program waits, as the real one does, until its last client has ended: here, until a file is there.
    program.write_text(
        f"#!/bin/sh\nPATH=/usr/bin:/bin\nread line\nwhile [ ! -e {host}/over ]; do sleep 0.01; done\n"
        f'echo "$line $CUDA_MPS_PIPE_DIRECTORY" > {asked}.part\nmv {asked}.part {asked}\n'
    )
    with mps_running(host, is_client=True):
        pass
    assert not asked.exists(), "nobody waited for it"
    (host / "over").touch()
    while not asked.exists():
        time.sleep(0.01)
    assert asked.read_text() == f"quit {host / 'own'}\n"


def test_a_daemon_is_stopped_when_the_services_fail(host: Path, daemon: FakeDaemon) -> None:
    with pytest.raises(RuntimeError), mps_running(host):
        raise RuntimeError("a port is taken")
    assert not daemon.running


def test_a_daemon_that_runs_is_used_and_left_running(host: Path, daemon: FakeDaemon) -> None:
    daemon.run_at(host / "system")
    with mps_running(host) as use:
        assert not use.is_ours and use.pipes == host / "system"
    assert daemon.running == {str(host / "system")}


def test_a_daemon_that_the_environment_names_is_used(
    host: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.run_at(host / "named")
    monkeypatch.setenv(MPS_VARIABLE, str(host / "named"))
    with mps_running(host) as use:
        assert use.pipes == host / "named"
    assert os.environ[MPS_VARIABLE] == str(host / "named")


def test_a_daemon_of_another_user_is_not_used(host: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.run_at(host / "system")
    monkeypatch.setattr(mps, "mps_owner", lambda pipes: os.getuid() + (pipes == host / "system"))
    use = start_mps(host)
    assert use.pipes == host / "own" and use.is_ours
    assert "belongs to another user" in use.note


def test_a_dead_daemon_is_started_again(host: Path, daemon: FakeDaemon) -> None:
    daemon.run_at(host / "own")
    daemon.running.clear()
    assert start_mps(host).is_ours


def test_it_is_said_where_there_is_none(host: Path, daemon: FakeDaemon) -> None:
    daemon.can_start = False
    assert "failed, see" in start_mps(host).note
    (host / "nvidia-cuda-mps-control").unlink()
    use = start_mps(host)
    assert use.pipes is None and "is not on PATH" in use.note
