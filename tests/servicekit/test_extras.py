"""Hints about optional parts, what a GPU host has, and telemetry that is switched off."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosydit.cli.doctor import next_command
from cosydit.cli.main import main
from cosydit.stack.host_report import Finding, State
from servicekit import extras
from servicekit.extras import install_command, installed_from, missing_extra, own_command
from servicekit.gpu_host import default_device, missing_for_kernels, mps_problem, read_gpus
from tests import ROOT
from tests.cosydit.stack.gpu_hosts import H100, H200, L4, SLICES, nvidia_smi
from tests.package.test_metadata import PYPROJECT_EXTRAS


@pytest.fixture
def from_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_ROOT", tmp_path / "site-packages")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3")


def test_in_the_repository_a_hint_names_the_repository() -> None:
    assert installed_from().is_repository
    assert install_command("demo").endswith(f" -m pip install -e '{ROOT}[demo]'")


@pytest.mark.usefixtures("from_wheel")
def test_of_a_wheel_a_hint_names_its_file() -> None:
    assert install_command("demo").endswith(" -m pip install './cosydit-1.2.3-py3-none-any.whl[demo]'")


def test_a_module_that_no_extra_brings_is_not_explained() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
    hint = missing_extra(ModuleNotFoundError("No module named 'onnx.helper'", name="onnx.helper"))
    assert hint is not None and "onnx is not installed" in hint and "[checkpoint]'" in hint


def test_every_extra_of_a_hint_exists() -> None:
    assert set(extras._EXTRA_OF.values()) <= set(PYPROJECT_EXTRAS)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["say", "Hello."], ["serve"]])
def test_a_command_without_its_extra_says_which_one_before_anything_starts(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COSYDIT_HOME", str(tmp_path))
    monkeypatch.setattr("cosydit.cli.stack_options.TOKEN2WAV_MODULES", ("no_such_module",))
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "no_such_module not installed; install with: " in said and "[demo]'" in said and "Traceback" not in said


def test_any_command_explains_a_missing_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*ignored: object) -> int:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("cosydit.cli.plan.run", run)
    assert main(["plan", "--listeners", "10", "--p95-ms", "250"]) == 1
    assert "cosydit plan: matplotlib is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        pytest.param(["torch"], "[demo]'", id="a package"),
        pytest.param(["shared libpython", "torch"], "libpython3", id="the library of Python"),
        pytest.param(["checkpoint"], "cosydit checkpoint unpack-demo", id="a checkpoint"),
        pytest.param([], "cosydit say TEXT", id="nothing"),
    ],
)
@pytest.mark.usefixtures("from_wheel")
def test_doctor_tells_a_user_of_the_wheel_no_command_of_the_repository(missing: list[str], expected: str) -> None:
    command = next_command([Finding("x", name, "", State.MISSING) for name in missing])
    assert expected in command and "run_stepaudio2" not in command


def test_a_hint_names_the_program_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert own_command("doctor") == "cosydit doctor"
    program = tmp_path / ".venv" / "bin" / "cosydit"
    program.parent.mkdir(parents=True)
    program.touch()
    assert own_command("doctor") == f"{program} doctor"
    monkeypatch.chdir(tmp_path)
    assert own_command("doctor") == ".venv/bin/cosydit doctor"


@pytest.mark.parametrize("extra", ["gpu", "tensorrt", "tensorrt-rtx", "download"])
def test_every_extra_of_a_gpu_host_can_download_the_checkpoint(extra: str) -> None:
    assert any(requirement.startswith("huggingface_hub") for requirement in PYPROJECT_EXTRAS[extra])


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have an environment that names no GPU, device or compiler."""
    for name in ("CUDA_VISIBLE_DEVICES", "COSYDIT_DEVICE", "CC", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_only_visible_gpus_count_in_the_order_in_which_they_are_named(bare: pytest.MonkeyPatch) -> None:
    run = nvidia_smi(H100, L4, H200)
    assert read_gpus(run) == (H100, L4, H200)
    assert read_gpus(nvidia_smi()) == read_gpus(lambda _: "No devices were found") == ()
    # CUDA stops at the first that is none.
    for named, gpus in {"2,0": (H200, H100), "GPU-1": (L4,), "0,7,1": (H100,), "": (), "-1": ()}.items():
        bare.setenv("CUDA_VISIBLE_DEVICES", named)
        assert read_gpus(run) == gpus


def test_a_slice_counts_with_its_own_memory(bare: pytest.MonkeyPatch) -> None:
    run = nvidia_smi(H100, H100, mig=[0], listed=SLICES)
    large, small, whole = read_gpus(run)
    assert large.is_slice and 38_000 < large.memory_mib < 41_000
    assert small.memory_mib < 10_000 and whole == H100
    bare.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    assert read_gpus(run) == (small,)


def test_the_environment_names_the_device(bare: pytest.MonkeyPatch) -> None:
    assert default_device() == "auto"
    for named, device in {"": "auto", "cpu": "cpu"}.items():
        bare.setenv("COSYDIT_DEVICE", named)
        assert default_device() == device


def test_a_host_without_compiler_or_headers_is_told_the_packages(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    bare.setenv("PATH", str(tmp_path))
    assert missing_for_kernels(tmp_path) == ["gcc", "libc6-dev", f"libpython{version}-dev"]
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert missing_for_kernels(tmp_path) == []
    bare.setenv("CC", "other")
    assert missing_for_kernels(tmp_path) == ["gcc", "libc6-dev"]


def test_a_daemon_of_mps_serves_its_owner_and_roots_serves_everybody(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    assert mps_problem(10001) is None, "no daemon, no problem"
    bare.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert mps_problem(10001) is None, "no daemon, no problem"
    (tmp_path / "control").touch()
    owner = (tmp_path / "control").stat().st_uid
    assert mps_problem(owner) is None
    if owner != 0:
        assert f"belongs to user {owner}" in str(mps_problem(owner + 1))
    else:
        assert mps_problem(10001) is None
        os.chown(tmp_path / "control", 4711, -1)
        assert "belongs to user 4711 and serves nobody else; this process is user 10001" in str(mps_problem(10001))


@pytest.mark.slow
@pytest.mark.parametrize("package", ["token2wav_service", "llm_service", "gateway", "cosydit", "demo_voice"])
def test_whoever_imports_a_package_of_ours_has_onnx_runtime_write_no_device_id(tmp_path: Path, package: str) -> None:
    pytest.importorskip("onnxruntime")
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        environment[name] = str(tmp_path)
    command = [sys.executable, "-B", "-c", f"import {package}, onnxruntime"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    assert list(tmp_path.rglob("*")) == []
