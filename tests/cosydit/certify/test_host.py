"""What the checks of the host see: drivers, MPS daemons, compilers. The host is faked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cosydit.certify.check import Findings, Result
from cosydit.stack import host_report as host
from tests.cosydit.certify import plans


def outcome_of(name: str, folder: Path, device: str = "cuda") -> Findings:
    return plans.outcome_of(f"host/{name}", folder, device)


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("cuda", "driver"), [("13.0", 580), ("12.8", 525), ("12.1", 525), ("11.8", 520), ("11.2", 520)]
)
def test_every_cuda_has_its_least_driver(cuda: str, driver: int) -> None:
    assert host.min_driver(cuda) == driver


@pytest.mark.parametrize(("driver", "result"), [("580.95.05", Result.PASS), ("470.57.02", Result.FAIL)])
def test_a_driver_is_compared_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, result: Result
) -> None:
    monkeypatch.setattr(host, "torch_cuda_version", lambda: "13.0")
    fake_smi(tmp_path, monkeypatch, f"0, GPU-1, H100, 81559, 81000, {driver}, 9.0, Disabled")
    outcome = outcome_of("driver", tmp_path)
    assert outcome.result is result
    assert "which needs R580" in outcome.describe()


def test_a_killed_daemon_is_found_dead_and_one_that_reads_its_pipe_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "control")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    outcome = outcome_of("mps", tmp_path)
    assert outcome.result is Result.FAIL and "MPS daemon" in outcome.reason and "is dead" in outcome.reason
    daemon = os.open(tmp_path / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert outcome_of("mps", tmp_path).result is Result.PASS
    finally:
        os.close(daemon)


def test_a_named_place_without_a_daemon_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert "no daemon is" in outcome_of("mps", tmp_path).reason


def test_a_host_without_a_gpu_is_not_run_and_without_a_compiler_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert outcome_of("gpu", tmp_path).result is Result.NOT_RUN
    assert outcome_of("compiler", tmp_path, device="cpu").result is Result.NOT_RUN
    compiler = outcome_of("compiler", tmp_path)
    assert compiler.result is Result.FAIL and "apt-get install gcc" in compiler.reason


@pytest.mark.slow
def test_a_module_that_breaks_at_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("raise OSError('libcudart.so.12 is missing')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(host, "NEEDED", ("json", "broken_module"))
    monkeypatch.setattr(host, "OPTIONAL", ())
    outcome = outcome_of("imports", tmp_path, device="cpu")
    assert outcome.result is Result.FAIL and "libcudart.so.12 is missing" in outcome.reason
    assert "json" not in outcome.reason
