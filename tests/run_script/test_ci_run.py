"""`.ci/run` runs the command of README.md; tables of results are combined; the doctor sees what a host lacks."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from benchmarks.combine import combine, main
from cosydit.cli import doctor as command
from cosydit.cli.doctor import can_run, examine
from cosydit.stack import host_report as host
from cosydit.stack.host_report import Finding, Look, State
from cosydit.stack.stack import Ports
from tests import ROOT
from tests.cosydit.stack.gpu_hosts import H100


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that holds `.ci/run` and nothing else."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    return tmp_path


def ci_run(clone: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([clone / ".ci" / "run"], capture_output=True, text=True, timeout=30, check=False, cwd="/")


def test_the_second_command_of_the_first_block_runs_in_the_clone(clone: Path) -> None:
    (clone / "README.md").write_text("# T\n\n```bash\necho main\n\necho tests in $PWD\n```\n\n```\necho later\n```\n")
    done = ci_run(clone)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"tests in {clone}"
    assert "later" not in done.stdout


def test_a_failing_test_command_fails_the_run(clone: Path) -> None:
    (clone / "README.md").write_text("```\ntrue\nexit 7\n```\n")
    assert ci_run(clone).returncode == 7


@pytest.mark.parametrize(
    "readme",
    [
        pytest.param(None, id="no-readme"),
        pytest.param("no block at all\n", id="no-block"),
        pytest.param("```\none\n```\n\n```\na\nb\n```\n", id="one-command"),
        pytest.param("```\none\ntwo\nthree\n```\n", id="three-commands"),
    ],
)
def test_a_readme_without_its_two_commands_fails_the_run(clone: Path, readme: str | None) -> None:
    if readme is not None:
        (clone / "README.md").write_text(readme)
    done = ci_run(clone)
    assert done.returncode == 1
    assert "README.md" in done.stderr


def test_the_projects_own_readme_names_the_main_job_and_the_tests() -> None:
    block = (ROOT / "README.md").read_text("utf-8").split("```")[1].strip().splitlines()
    commands = [line for line in block if line and not line.isalpha()]
    assert [command.split()[:3] for command in commands] == [
        ["bash", "run_stepaudio2_dit_token2wav.sh", "say"],
        ["bash", "run_stepaudio2_dit_token2wav.sh", "test"],
    ]


def write_results(directory: Path, failures: int, throughput: float, ttfa_s: float | None) -> Path:
    directory.mkdir()
    times = None if ttfa_s is None else {"p50": ttfa_s, "p99": 2 * ttfa_s}
    summary = {"requests": 4, "failures": failures, "audio_s_per_s": throughput, "ttfa_s": times, "total_s": times}
    (directory / "results.json").write_text(json.dumps({"summary": summary}))
    return directory


def test_each_run_is_a_row_and_the_last_adds_up(tmp_path: Path) -> None:
    runs = [write_results(tmp_path / "a", 0, 2.0, 0.25), write_results(tmp_path / "b", 1, 3.5, None)]
    rows = [line.split() for line in combine(runs).splitlines()]
    assert rows[1] == ["a", "4", "0", "250.0", "500.0", "250.0", "2.000"]
    assert rows[2] == ["b", "4", "1", "-", "-", "-", "3.500"]
    assert rows[3] == ["all", "8", "1", "5.500"]


def test_a_folder_without_results_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "results.json" in capsys.readouterr().err


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
