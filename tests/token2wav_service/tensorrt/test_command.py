"""`cosydit build-engines` and what `cosydit doctor` says of engines. FAKE TensorRT, documented interface."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cosydit.cli import build_engines as command
from cosydit.stack.engines import SERVED_GRAPHS, next_engine_command, report_engines, serves_engines
from servicekit.file_sums import sha256_of_file
from tests.token2wav_service.tensorrt.executors import ModuleExecutor
from tests.token2wav_service.tensorrt.fake_tensorrt import FakeTensorRT
from tests.token2wav_service.tensorrt.small import HOST, tensorrt
from token2wav_service.checkpoint import loader
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import SMALL_FLOW, SMALL_HIFT, SMALL_SIZES, make_random_token2wav
from token2wav_service.errors import EngineUnfitError, ExportError
from token2wav_service.export.build import Models, module_for
from token2wav_service.export.manifest import Manifest, describe, write_manifest
from token2wav_service.export.tensorrt.build import Certifier, EngineRequest
from token2wav_service.export.tensorrt.certify import make_certifier, sizes_to_measure
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, F0_PREDICTOR, VOCODER, describe_graphs
from token2wav_service.graphs.shapes import AxisRange, ShapeSettings
from token2wav_service.graphs.spec import GraphSpec, Precision
from token2wav_service.runtime.tensorrt.api import TensorRT
from token2wav_service.runtime.tensorrt.manifest import GpuHost, probe_gpu, read_manifests, tensorrt_version

SHAPES = ShapeSettings(streams=AxisRange(1, 2, 4), chunk_frames=AxisRange(2, 6, 8), prompt_frames=AxisRange(1, 5, 9))
NO_GPU = GpuHost(None, None, None)


class Exported:
    """A small checkpoint, and what `cosydit export` leaves of the graphs that are served: files for the fake to run."""

    def __init__(self, model_dir: Path, family: Family = Family.STEP_AUDIO2) -> None:
        make_random_token2wav(model_dir, 0, *SMALL_SIZES[family])
        described = describe_graphs(*SMALL_SIZES[family], Precision.FLOAT32, (SHAPES,))
        self.model_dir, self.spec = model_dir, described[ESTIMATOR_CHUNK]
        self.onnx_dir = model_dir / "onnx"
        self.onnx_dir.mkdir()
        self.onnx = self.write(self.spec, loader.flow_files(model_dir))
        self.write(described[VOCODER], loader.hift_files(model_dir))
        models = Models(model_dir)
        graphs = {name: ModuleExecutor(described[name], module_for(described[name], models)) for name in SERVED_GRAPHS}
        self.fake = FakeTensorRT(read_graph=lambda content: graphs[content.decode()])

    def write(self, spec: GraphSpec, files: Sequence[Path]) -> Path:
        onnx = self.onnx_dir / spec.file_name
        onnx.write_text(spec.name)
        sources = {path.name: sha256_of_file(path) for path in files}
        made = Manifest(
            spec.name, "float32", 18, sha256_of_file(onnx), onnx.stat().st_size, "", sources, {}, describe(spec)
        )
        write_manifest(onnx, made)
        return onnx

    def run(self, *options: str, host: GpuHost = HOST) -> int:
        parser = argparse.ArgumentParser()
        command.add_parser(parser.add_subparsers())
        args = parser.parse_args(["build-engines", str(self.model_dir), "--precision", "float32", *options])
        return command.build_engines(args, host, self.load, self.certifier)

    def load(self) -> TensorRT:
        return tensorrt(self.fake)

    def certifier(self, model_dir: Path, request: EngineRequest) -> Certifier:
        return make_certifier(model_dir, request.onnx, torch.device("cpu"))


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    return Exported(tmp_path / "token2wav")


@pytest.mark.slow
@pytest.mark.parametrize("family", Family)
def test_an_exported_graph_becomes_a_certified_engine_and_stays(
    tmp_path: Path, family: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = Exported(tmp_path / "token2wav", family)
    assert exported.run() == 0
    assert "built in" in capsys.readouterr().out
    manifest, vocoder = read_manifests(exported.model_dir / "engines")
    measured = [dict(case.sizes) for case in manifest.certificate.cases]
    assert measured == [sizes for sizes in sizes_to_measure(exported.spec) for _ in range(2)]
    assert {error.output for case in manifest.certificate.cases for error in case.outputs} == {
        tensor.name for tensor in exported.spec.outputs
    }
    assert [profile.name for profile in manifest.profiles] == ["default_streams", "default_voice"]
    assert manifest.profiles[0].inputs["x"].max == (8, 80, 8)
    assert exported.run() == 0
    assert "was there already" in capsys.readouterr().out
    assert (vocoder.key.graph, vocoder.key.precision) == (VOCODER, "float32")
    assert exported.fake._journal.builds == 2


def test_engines_of_a_family_that_they_do_not_serve_are_not_asked_for(tmp_path: Path) -> None:
    served, other = tmp_path / "served", tmp_path / "other"
    for folder, family in ((served, Family.STEP_AUDIO2), (other, Family.COSYVOICE3)):
        make_random_token2wav(folder, 0, *SMALL_SIZES[family])
    assert (serves_engines(served), serves_engines(other)) == (True, False)
    assert next_engine_command(served, []) and next_engine_command(other, []) is None


def test_a_graph_that_the_checkpoint_s_family_has_not_is_refused(exported: Exported) -> None:
    other = exported.model_dir.parent / "other"
    make_random_token2wav(other, 0, *SMALL_SIZES[Family.COSYVOICE3])
    pitch = describe_graphs(SMALL_FLOW, SMALL_HIFT, Precision.FLOAT32, (SHAPES,))[F0_PREDICTOR]
    onnx = exported.write(pitch, loader.hift_files(exported.model_dir))
    with pytest.raises(ExportError, match=r"family cosyvoice3 has estimator_chunk .* vocoder; export again"):
        make_certifier(other, onnx, torch.device("cpu"))


def test_an_engine_of_other_weights_than_the_checkpoints_is_refused(
    exported: Exported, capsys: pytest.CaptureFixture[str]
) -> None:
    other = exported.model_dir.parent / "other"
    make_random_token2wav(other, 1)
    (exported.model_dir / loader.FLOW_WEIGHTS).write_bytes((other / loader.FLOW_WEIGHTS).read_bytes())
    assert exported.run() == 1
    assert "too far from float32" in capsys.readouterr().err
    assert list((exported.model_dir / "engines").glob("*.engine")) == []


def test_what_can_not_be_done_is_said_with_the_command(exported: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported.run(host=NO_GPU) == 1
    assert "engines are built on the GPU host" in capsys.readouterr().err
    assert exported.run("--only", "encoder_chunk") == 1
    shown = f"cosydit export {exported.model_dir} --out {exported.onnx.parent} --precision float32"
    shown += " --vocoder-precision float32 --only encoder_chunk"
    assert f"run: {shown}" in capsys.readouterr().err
    assert exported.run("--only", "estimator") == 1
    assert "expected some of estimator_chunk" in capsys.readouterr().err
    exported.onnx.write_bytes(b"cut")
    assert exported.run() == 1
    assert "is missing or not whole" in capsys.readouterr().err


@pytest.mark.slow
def test_the_doctor_says_whether_engines_fit_and_what_to_run(exported: Exported) -> None:
    folder = exported.model_dir
    assert next_engine_command(folder, []) == f"cosydit build-engines {folder}"
    exported.run()
    here = report_engines(folder, HOST)
    assert [(report.graph, report.problems, report.note[:5]) for report in here] == [
        (graph, (), "fits,") for graph in SERVED_GRAPHS
    ]
    assert next_engine_command(folder, here) is None
    assert next_engine_command(folder, here[:1]) == f"cosydit build-engines {folder}"
    elsewhere = report_engines(folder, replace(HOST, architecture="sm89"))
    assert elsewhere[0].problems == ("it is for sm90, this GPU is sm89",)
    assert next_engine_command(folder, elsewhere) == f"cosydit build-engines {folder}"
    (folder / "engines" / "broken.json").write_text("{}")
    assert "can't read the engine manifest" in report_engines(folder, HOST)[0].problems[0]
    exported.onnx.unlink()
    assert next_engine_command(folder, []) == f"cosydit export {folder} --out {folder / 'onnx'} --precision float16"


def test_the_gpu_is_asked_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def answer(command: Sequence[str]) -> str:
        asked.append(command)
        return "9.0, NVIDIA H200\n9.0, NVIDIA H200\n"

    def fail(command: Sequence[str]) -> str:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert probe_gpu(answer) == ("sm90", "NVIDIA H200")
    assert asked[0][-1] == "--id=3"
    assert probe_gpu(fail) == probe_gpu(lambda _: "") == (None, None)


def test_this_environment_has_no_tensorrt_and_loading_it_says_how_to_get_it() -> None:
    if tensorrt_version() is not None:
        pytest.skip("TensorRT is installed")
    from token2wav_service.runtime.tensorrt.api import load_tensorrt

    with pytest.raises(EngineUnfitError, match="pip install 'tensorrt>=10,<12' on the GPU host"):
        load_tensorrt()
