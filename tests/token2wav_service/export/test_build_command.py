"""`cosydit build-engines` with the real TensorRT for RTX on a CPU, and what `cosydit doctor` says of engines."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cosydit.cli import build_engines as command
from cosydit.stack import engines
from cosydit.stack.engines import next_engine_command, report_engines
from servicekit.gpu_host import GpuFacts
from token2wav_service.errors import Token2WavError
from token2wav_service.export.directory import ExportDirectory
from token2wav_service.graphs import GRAPHS
from token2wav_service.runtime.tensorrt import manifest
from token2wav_service.runtime.tensorrt.api import TensorRT, load_tensorrt
from token2wav_service.runtime.tensorrt.manifest import (
    TENSORRT_RTX,
    CertifiedCase,
    EngineCertificate,
    GpuHost,
    OutputError,
    Speed,
    installed_libraries,
    probe_host,
    read_manifests,
)

L4 = GpuHost("sm89", "NVIDIA L4", installed_libraries())
NO_GPU = replace(L4, architecture=None, gpu_name=None)
MEASURED = EngineCertificate(55.0, (CertifiedCase({"rows": 1}, (OutputError("y", 60.0, 0.0),)),))


class Loading(TensorRT):
    def load(self, plan: bytes) -> Any:
        return SimpleNamespace()


class Commands:
    """A checkpoint whose graphs are exported, and the command on machines of its own."""

    def __init__(self, exports: ExportDirectory, folder: Path) -> None:
        self.model_dir, self.onnx_dir = exports.model_dir, exports.out_dir
        self.engines_dir, self.timed = folder / "engines", 0
        self.speed = Speed("NVIDIA L4", 1.0, 2.0)

    def run(self, *options: str, host: GpuHost = NO_GPU) -> None:
        parser = argparse.ArgumentParser()
        command.add_parser(parser.add_subparsers())
        folders = ["--onnx-dir", str(self.onnx_dir), "--engines-dir", str(self.engines_dir)]
        args = parser.parse_args(["build-engines", str(self.model_dir), *folders, "--precision", "float32", *options])
        tools = command.Tools(host, self._load, lambda exports, task: lambda engine: MEASURED, self._time)
        command.build_engines(args, tools)

    def _load(self, library: str) -> TensorRT:
        return Loading(load_tensorrt(library)._module, TENSORRT_RTX)

    def _time(self, *_: object) -> Speed:
        self.timed += 1
        return self.speed


@pytest.fixture(scope="session")
def rtx() -> None:
    pytest.importorskip("tensorrt_rtx_bindings", reason="the extra tensorrt-rtx is not installed")


@pytest.fixture
def commands(rtx: None, exported: ExportDirectory, tmp_path: Path) -> Commands:
    return Commands(exported, tmp_path)


@pytest.mark.slow
def test_engines_are_built_ahead_then_measured_and_timed_on_their_gpu(
    commands: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.run("--for", "sm89")
    said = capsys.readouterr()
    assert said.out.count("not measured") == 2 and "estimator_chunk.float32: Building engine" in said.err
    assert "built ahead for sm89: runner=auto takes them once `cosydit build-engines` ran there" in said.out
    commands.run("--for", "sm89")
    assert capsys.readouterr().out.count("was there already") == 2
    commands.run(host=L4)
    said = capsys.readouterr()
    assert said.out.count("60.0 dB from float32 at worst") == 2 and "Building engine" not in said.err
    assert "1.0 ms with engines, 2.0 ms with the fused kernels; runner=auto with dtype=float32 takes them" in said.out
    assert {manifest.speed for manifest in read_manifests(commands.engines_dir)} == {commands.speed}
    commands.run(host=L4)
    assert commands.timed == 1

    commands.engines_dir.rename(commands.engines_dir.with_name("kept"))
    monkeypatch.setattr(engines, "ENGINES_FOLDER", "kept")
    folder = commands.engines_dir.parent
    here = report_engines(folder, L4)
    assert sorted(report.graph for report in here) == sorted(GRAPHS)
    assert all(report.note.endswith("runner=auto takes it") and not report.problems for report in here)
    assert next_engine_command(folder, here) is None
    assert next_engine_command(folder, here[:1]) == f"cosydit build-engines {folder}"
    elsewhere = report_engines(folder, replace(L4, architecture="sm80"))
    assert elsewhere[0].problems == ("it is for sm89, this GPU is sm80",)
    (folder / "kept" / "broken.json").write_text("{}")
    assert "can't read the engine manifest" in report_engines(folder, L4)[0].problems[0]


@pytest.mark.slow
def test_stage_1_says_that_stage_3_leaves_slower_engines_alone(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.speed = Speed("NVIDIA L4", 2.0, 1.0)
    commands.run("--only", "vocoder", "estimator_chunk", host=L4)
    assert "runner=auto with dtype=float32 leaves them alone and takes slots" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "host", "complaint"),
    [
        pytest.param((), NO_GPU, "no GPU that nvidia-smi shows; name the one to build for, as in --for", id="no GPU"),
        pytest.param((), replace(L4, architecture="sm90"), "not for sm90 (sm90 is Hopper's)", id="Hopper"),
        pytest.param(("--for", "sm90"), NO_GPU, "not for sm90", id="ahead for Hopper"),
        pytest.param(("--for", "sm89", "--only", "encoder"), NO_GPU, "expected some of estimator_chunk", id="graph"),
    ],
)  # fmt: skip
def test_what_can_not_be_built_is_said(
    commands: Commands, options: Sequence[str], host: GpuHost, complaint: str
) -> None:
    with pytest.raises(Token2WavError, match=re.escape(complaint)):
        commands.run(*options, host=host)


def test_engines_are_for_the_first_gpu_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (GpuFacts("NVIDIA H200", 1, 1, "", (9, 0)), GpuFacts("NVIDIA L4", 1, 1, "", (8, 9)))
    monkeypatch.setattr(manifest, "read_gpus", lambda: gpus)
    assert (probe_host().architecture, probe_host().gpu_name) == ("sm90", "NVIDIA H200")
    monkeypatch.setattr(manifest, "read_gpus", lambda: ())
    assert probe_host() == NO_GPU
