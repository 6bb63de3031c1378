"""`cosydit doctor` tells what the CPU path needs from what is only good to know."""

from __future__ import annotations

import argparse
import dataclasses
import socket
from pathlib import Path

import pytest

from cosydit.doctor import command, host
from cosydit.doctor.command import can_run, examine, next_command
from cosydit.doctor.host import Finding, Look, State
from cosydit.stack.stack import Ports
from tests.cosydit.stack.gpu_hosts import H100


def finding(name: str, findings: list[Finding]) -> Finding:
    return next(each for each in findings if each.name == name)


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["doctor", *arguments])
    return command.run(args)


def test_the_environment_of_the_tests_can_run_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--work-dir", str(tmp_path)) == 0
    report = capsys.readouterr().out
    for topic in ("Python", "CPU", "RAM", "/dev/shm", "torch", "ONNX Runtime", "tritonserver", "shared libpython"):
        assert topic in report
    assert "next: " in report


def test_a_named_checkpoint_that_lacks_parts_fails_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "llm").mkdir()
    assert run_command("--work-dir", str(tmp_path), "--checkpoint", str(tmp_path)) == 1
    report = capsys.readouterr().out
    assert "lacks token2wav, voices" in report
    assert "run_stepaudio2_dit_token2wav.sh 0 1" in report


def test_a_port_in_use_is_noted_and_fails_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        findings = examine(Ports(llm=port), None, tmp_path)
    assert finding("llm", findings).state is State.NOTE
    assert f"{port} is in use" in finding("llm", findings).value
    assert can_run(findings)


def test_a_work_directory_that_is_not_there_yet_is_no_problem(tmp_path: Path) -> None:
    findings = examine(Ports(), None, tmp_path / "not" / "yet")
    assert "free for" in finding("disk", findings).value


def test_a_missing_package_leads_to_the_environment_stage() -> None:
    findings = [Finding("packages", "torch", "not installed", State.MISSING)]
    assert not can_run(findings)
    assert "-1 -1" in next_command(findings)


def test_a_gpu_host_without_a_compiler_or_with_an_old_driver_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "missing_for_kernels", lambda: ["gcc", "libpython3.11-dev"])
    monkeypatch.setattr(host, "read_gpus", lambda: (dataclasses.replace(H100, driver="535.104.05"),))
    monkeypatch.setattr(host, "torch_cuda_version", lambda: "13.0")
    findings = examine(Ports(), None, tmp_path)
    assert "install gcc libpython3.11-dev" in finding("compiler", findings).value
    assert "needs R580: update it" in finding("driver", findings).value
    assert finding("driver", findings).state is State.NOTE
    assert next(host.driver(Look("cuda", tmp_path))).state is State.MISSING


def test_modules_that_stand_before_the_environments_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/image/packages")
    monkeypatch.setattr(host.sys, "prefix", "/elsewhere")
    findings = list(host.import_path())
    assert finding("PYTHONPATH", findings).state is State.NOTE
    assert "which is not of /elsewhere" in finding("numpy", findings).value
