"""Finding, describing and starting the server, without waiting for models."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import IO

import pytest

from tests.token2wav_service.serving.conftest import wait_ready
from tests.workers import free_ports, wait_until
from token2wav_service.serving import __main__ as serving_command
from token2wav_service.serving.__main__ import main
from token2wav_service.serving.process import installation as installation_module
from token2wav_service.serving.process.installation import (
    ServerOptions,
    TritonNotFoundError,
    find_installation,
    find_shared_libpython,
    lay_out_backends,
    server_command,
    server_environment,
)
from token2wav_service.serving.process.server import (
    TritonProcess,
    TritonStartError,
    check_shared_memory,
    sweep_leftovers,
)

REPOSITORY = Path(installation_module.__file__).parents[2] / "model_repository"
MIB = 1024 * 1024
WAIT_S = 30.0
Usage = namedtuple("Usage", "total used free")


def options(repository: Path) -> ServerOptions:
    return ServerOptions(repository, "127.0.0.1", *free_ports(3))


def broken_repository(folder: Path) -> Path:
    (folder / "broken" / "1").mkdir(parents=True)
    (folder / "broken" / "config.pbtxt").write_text('name: "broken" backend: "python" instance_group [ { count: 1 } ]')
    (folder / "broken" / "1" / "model.py").write_text("raise RuntimeError('no such luck')")
    return folder


def test_blas_has_one_thread_unless_somebody_wants_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert server_environment(find_installation())["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert server_environment(find_installation())["OPENBLAS_NUM_THREADS"] == "3"


def test_a_missing_libpython_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_module, "_library_folders", lambda: iter(()))
    with pytest.raises(TritonNotFoundError, match=r"Debian/Ubuntu package libpython3\.\d+"):
        find_shared_libpython()


def test_no_server_at_all_says_what_to_install_and_one_on_path_keeps_its_own_backends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation_module, "_wheel_root", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TritonNotFoundError, match="triton-embedded"):
        find_installation()
    (tmp_path / "tritonserver").write_text("#!/bin/sh\n")
    (tmp_path / "tritonserver").chmod(0o755)
    found = find_installation()
    assert found.binary == tmp_path / "tritonserver"
    assert lay_out_backends(found, tmp_path) is None
    assert not any(
        part.startswith("--backend-directory") for part in server_command(found, options(tmp_path), None, "p")
    )


def test_all_model_processes_fit_into_64_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 * MIB, 0, 64 * MIB))
    check_shared_memory(REPOSITORY)


def test_too_little_shared_memory_is_refused_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = shutil.copytree(REPOSITORY, tmp_path / "repository", ignore=shutil.ignore_patterns("*_of_*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 * MIB, 44 * MIB, 20 * MIB))
    with pytest.raises(TritonStartError, match=r"20 MiB free, and 14 model processes need 30 MiB.*--shm-size"):
        check_shared_memory(usual)


@pytest.mark.servers
def test_a_server_whose_model_does_not_load_ends_with_its_log(tmp_path: Path) -> None:
    given = options(broken_repository(tmp_path / "repo"))
    with (tmp_path / "log").open("wb") as log, start_foreground(given, log) as process:
        assert process.wait(WAIT_S) == 1
    assert "no such luck" in (tmp_path / "log").read_text()


SLOW_TO_END = """
import time
from token2wav_service.python_backend.server_process import note_end

class TritonPythonModel:
    def execute(self, requests):
        return []

    def finalize(self):
        note_end()
        time.sleep(600)
"""


@pytest.mark.servers
def test_a_server_that_has_answered_everything_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = broken_repository(tmp_path / "repo")
    (repository / "broken" / "1" / "model.py").write_text(SLOW_TO_END)
    with TritonProcess(options(repository)) as process:
        wait_ready(process)
    assert process.returncode == -signal.SIGKILL
    assert "did not stop" not in caplog.text


@pytest.mark.servers
def test_shared_memory_is_private_and_a_killed_servers_leftovers_are_swept(tmp_path: Path) -> None:
    repository = broken_repository(tmp_path / "repo")
    model = repository / "broken" / "1" / "model.py"
    model.write_text("class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
    process = TritonProcess(options(repository))
    process.start()
    try:
        wait_ready(process)
        regions = list(Path("/dev/shm").glob(f"{process.shm_prefix}*"))
        assert regions and {stat.S_IMODE(each.stat().st_mode) for each in regions} == {0o600}
        sweep_leftovers()
        assert all(each.exists() for each in regions), "those of a living server"
        folder = Path(tempfile.gettempdir()) / process.shm_prefix
        assert process._lock is not None
        os.close(process._lock)  # as when the launcher is killed
        process._lock = None
        process.kill()
        wait_until(lambda: process.returncode is not None, WAIT_S)
        wait_until(lambda: bool(sweep_leftovers()) or not folder.exists(), WAIT_S)
        assert not any(each.exists() for each in regions)
    finally:
        process.stop()


def test_what_is_not_a_servers_or_is_in_use_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("cosydit-triton-unlocked", "another"):
        (tmp_path / name).mkdir()
    dead = tmp_path / "cosydit-triton-dead"
    dead.mkdir()
    (dead / "lock").touch()
    with (tmp_path / "another" / "lock").open("wb") as held:
        (tmp_path / "cosydit-triton-alive").mkdir()
        (tmp_path / "cosydit-triton-alive" / "lock").hardlink_to(tmp_path / "another" / "lock")
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sweep_leftovers() == ["cosydit-triton-dead"]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "another",
        "cosydit-triton-alive",
        "cosydit-triton-unlocked",
    ]


def test_the_command_line_refuses_a_missing_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-repository", str(tmp_path / "none")]) == 2
    assert "assemble" in capsys.readouterr().err


def test_the_command_line_assembles_the_repository_that_its_settings_describe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_command, "_serve", lambda process, drain_timeout_s: 0)
    command = ["--model-repository", str(tmp_path / "repository")]
    for pair in (f"model_dir={tmp_path}", f"llm_tokenizer_dir={tmp_path}", "TRITON_MAX_BATCH_SIZE=7"):
        command += ["--set", pair]
    assert main(command) == 0
    assert "max_batch_size: 7" in (tmp_path / "repository" / "audio_tokenizer" / "config.pbtxt").read_text()
    assert main([*command, "--set", "colour=red"]) == 2
    assert "unknown setting 'colour'" in capsys.readouterr().err


def start_foreground(given: ServerOptions, log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "token2wav_service.serving", "--model-repository", str(given.model_repository)]
    command += ["--http-port", str(given.http_port), "--grpc-port", str(given.grpc_port)]
    command += ["--metrics-port", str(given.metrics_port)]
    return subprocess.Popen(command, stdout=log, stderr=log)


@pytest.mark.servers
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_the_server_ends_with_its_foreground_command(tmp_path: Path, number: int, status: int) -> None:
    given = options(tmp_path / "repo")
    given.model_repository.mkdir()
    probe = TritonProcess(given)
    with (tmp_path / "log").open("wb") as log, start_foreground(given, log) as process:
        try:
            wait_ready(probe)
            process.send_signal(number)
            assert process.wait(WAIT_S) == status
        finally:
            process.kill()
    wait_until(lambda: not probe.is_ready(), "the server's end")
