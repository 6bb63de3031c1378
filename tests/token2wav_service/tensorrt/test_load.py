"""From engines to audio. The loaded engines are stand-ins: they run our own modules on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from servicekit.file_sums import sha256_of_file
from tests.token2wav_service.streaming.family_factory import make_block_flow, make_causal_hift
from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from tests.token2wav_service.tensorrt.module_engine import ModuleEngine
from token2wav_service import build
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import HistoryPolicy, RunnerKind, SynthesisPolicy, Token2WavConfig
from token2wav_service.errors import EngineUnfitError
from token2wav_service.export.compare import ENGINE_MIN_SNR_DB
from token2wav_service.export.modules import VocoderStack, estimator_module
from token2wav_service.graphs import ESTIMATOR_CHUNK, VOCODER, GraphSpec, Precision, describe_graph
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.replay.vectors import snr_db
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.runtime.tensorrt import load
from token2wav_service.runtime.tensorrt.load import (
    EngineFinder,
    EngineParts,
    TensorRTNetwork,
    assemble_parts,
    load_parts,
)
from token2wav_service.runtime.tensorrt.manifest import (
    CertifiedCase,
    EngineCertificate,
    EngineKey,
    EngineManifest,
    GpuHost,
    OutputError,
    Speed,
)
from token2wav_service.runtime.tensorrt.solver import TensorRTSolver

POLICY = SynthesisPolicy(
    history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1, estimator_recent_frames=10, conformer_recent_frames=12
)
SHAPES = StepShapes((1, 2), (4, 6))
SIZES = PoolSizes(streams=2, estimator_recent=10, conformer_recent=12, max_prompt_frames=32)
HOST = GpuHost("sm89", "NVIDIA L4", ("tensorrt_rtx 1.7.1.116",))
MEASURED = EngineCertificate(45.0, (CertifiedCase({"rows": 2}, (OutputError("velocity", 60.0, 0.01),)),))


class Checkpoint:
    """A folder with something to hash, the models, and engines of them."""

    def __init__(self, folder: Path, family: Family = Family.STEP_AUDIO2) -> None:
        is_plain = family is Family.STEP_AUDIO2
        self.flow: AnyFlow = make_flow() if is_plain else make_block_flow(family)
        self.hift: HiFT | CausalHiFT = fold_weight_norm(make_hift() if is_plain else make_causal_hift())
        self.config = Token2WavConfig(folder, synthesis=POLICY)
        self.engines: dict[str, ModuleEngine] = {}
        self.flow_files = (family.files.description, "flow.pt")
        for name in (*self.flow_files, "hift.pt"):
            (folder / name).write_text(f"stands for {name}")
        spec = describe_graph(ESTIMATOR_CHUNK, self.flow.config, self.hift.config, Precision.FLOAT32)
        module = estimator_module(self.flow, Precision.FLOAT32, spec.ranges["chunk_frames"].max)
        self.add(spec, ModuleEngine(spec, module), self.flow_files)

    def add_vocoder(self, precision: Precision = Precision.FLOAT32) -> None:
        spec = describe_graph(VOCODER, self.flow.config, self.hift.config, precision)
        files = ("hift.pt",) if isinstance(self.hift, HiFT) else ("hift.pt", self.flow_files[0])
        self.add(spec, ModuleEngine(spec, VocoderStack(self.hift, precision)), files)

    def add(
        self, spec: GraphSpec, engine: ModuleEngine, files: Sequence[str], speed: Speed | None = None
    ) -> EngineManifest:
        folder = self.config.model_dir
        directory, plan = folder / "engines", spec.file_name.encode()
        directory.mkdir(exist_ok=True)
        key = EngineKey(spec.name, spec.precision.value, "sm89", HOST.libraries[0], "0" * 64)
        sources = {name: sha256_of_file(folder / name) for name in files}
        manifest = EngineManifest(key, HOST.gpu_name, sources, len(plan), MEASURED, speed)
        manifest.engine_path(directory).write_bytes(plan)
        manifest.write(directory)
        self.engines[plan.decode()] = engine
        return manifest

    @property
    def library(self) -> str:
        return HOST.libraries[0]

    def load(self, plan: bytes) -> ModuleEngine:
        return self.engines[plan.decode()]

    def parts(self, host: GpuHost = HOST, runner: RunnerKind = RunnerKind.TENSORRT, **changes: Any) -> EngineParts:
        config = replace(self.config, runner=runner, **changes)
        finder = EngineFinder(config, host, lambda _: self)  # type: ignore[arg-type,return-value]
        return assemble_parts(finder, self.flow, self.hift, SHAPES)

    @property
    def runs(self) -> int:
        return sum(engine.journal.runs for engine in self.engines.values())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


@pytest.mark.parametrize("precision", list(Precision))
def test_the_vocoder_s_engine_equals_the_plain_convolutions(checkpoint: Checkpoint, precision: Precision) -> None:
    checkpoint.add_vocoder(precision)
    network, hift = checkpoint.parts(tensorrt_vocoder=precision.value).convolutions, checkpoint.hift
    assert isinstance(network, TensorRTNetwork) and isinstance(hift, HiFT)
    frames = SHAPES.token_buckets[0] * 2 + 8
    mel, lengths = torch.randn(2, frames, 80), torch.tensor([frames, 5])
    mel[1, 5:] = 0
    columns = frames * hift.config.frame_samples // hift.config.istft_hop + 1
    spectrum = torch.randn(2, columns, hift.config.istft_n_fft + 2)
    got = network.spectra(mel, spectrum, lengths).transpose(1, 2)
    assert checkpoint.runs == 1
    expected = hift.spectra(mel.transpose(1, 2), spectrum.transpose(1, 2), lengths)
    assert snr_db(got[0], expected[0]) >= ENGINE_MIN_SNR_DB[precision]


@pytest.mark.parametrize("family", [Family.STEP_AUDIO2, Family.COSYVOICE3])
def test_every_family_takes_both_engines(tmp_path: Path, family: Family) -> None:
    checkpoint = Checkpoint(tmp_path, family)
    checkpoint.add_vocoder()
    parts = checkpoint.parts()
    assert isinstance(parts.solver, TensorRTSolver) and parts.convolutions is not None


def test_without_an_engine_of_the_vocoder_it_runs_as_without_engines(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.add_vocoder()
    with caplog.at_level(logging.WARNING):
        assert checkpoint.parts(tensorrt_vocoder="float16").convolutions is None
    assert "the vocoder runs without an engine" in caplog.text
    assert "--only vocoder --vocoder-precision float16" in caplog.text


@pytest.mark.parametrize(
    ("host", "changes", "reason"),
    [
        pytest.param(replace(HOST, architecture="sm80"), {}, "it is for sm89, this GPU is sm80", id="another GPU"),
        pytest.param(
            replace(HOST, libraries=("tensorrt 11.4.0.106",)),
            {},
            "for tensorrt_rtx 1.7.1.116, here is tensorrt 11.4.0.106",
            id="another library",
        ),
        pytest.param(HOST, {"engines_dir": Path("nowhere")}, "there is no engine of estimator_chunk", id="no engine"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_command(
    checkpoint: Checkpoint, host: GpuHost, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(EngineUnfitError) as caught:
        checkpoint.parts(host, **changes)
    assert reason in str(caught.value)
    folder = changes.get("engines_dir", checkpoint.config.model_dir / "engines")
    command = f"cosydit build-engines {checkpoint.config.model_dir} --engines-dir {folder} --only estimator_chunk"
    assert f"run: {command} --precision float32" in str(caught.value)


def test_an_engine_of_another_checkpoint_or_without_its_file_is_refused(checkpoint: Checkpoint) -> None:
    folder = checkpoint.config.model_dir
    (folder / "flow.pt").write_text("other weights")
    with pytest.raises(EngineUnfitError, match=r"it was built from another flow\.pt"):
        checkpoint.parts()
    (folder / "flow.pt").write_text("stands for flow.pt")
    next((folder / "engines").glob("*.engine")).unlink()
    with pytest.raises(EngineUnfitError, match="the engine file is missing"):
        checkpoint.parts()


def test_a_type_that_no_engine_computes_in_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.flow.to(torch.bfloat16)
    with pytest.raises(EngineUnfitError, match="engines compute in float32 or float16, got dtype=bfloat16"):
        checkpoint.parts()


@pytest.mark.parametrize(
    ("speed", "reason"),
    [
        pytest.param(None, "was not timed on NVIDIA L4", id="not timed"),
        pytest.param(Speed("NVIDIA L40S", 1.0, 2.0), "was not timed on NVIDIA L4", id="timed elsewhere"),
        pytest.param(Speed("NVIDIA L4", 2.0, 1.0), "is not faster: 2.0 ms with engines, 1.0 ms", id="slower"),
        pytest.param(Speed("NVIDIA L4", 1.0, 2.0), None, id="faster"),
    ],
)
def test_auto_takes_engines_that_were_timed_to_be_faster_here(
    checkpoint: Checkpoint, speed: Speed | None, reason: str | None
) -> None:
    (engine,) = checkpoint.engines.values()
    checkpoint.add(engine.spec, engine, checkpoint.flow_files, speed)
    assert checkpoint.parts().solver, "runner=tensorrt takes what fits"
    if reason is None:
        assert checkpoint.parts(runner=RunnerKind.AUTO).solver
    else:
        with pytest.raises(EngineUnfitError, match=reason):
            checkpoint.parts(runner=RunnerKind.AUTO)


def test_auto_goes_on_with_slots_and_says_why_and_tensorrt_does_not(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unfit(*_: object) -> EngineParts:
        raise EngineUnfitError("it does not fit")

    monkeypatch.setattr(load, "load_parts", unfit)
    runners = {kind: replace(checkpoint.config, device="cuda", runner=kind) for kind in RunnerKind}
    arguments = (checkpoint.flow, checkpoint.hift, SHAPES)
    assert build._engine_parts(runners[RunnerKind.AUTO], *arguments) == {}
    assert "runner=auto takes slots" in caplog.text and "it does not fit" in caplog.text
    assert build._engine_parts(runners[RunnerKind.SLOTS], *arguments) == {}
    with pytest.raises(EngineUnfitError, match="it does not fit"):
        build._engine_parts(runners[RunnerKind.TENSORRT], *arguments)


def test_the_runner_is_a_setting_and_needs_a_gpu(checkpoint: Checkpoint) -> None:
    settings = {"model_dir": "m", "runner": "tensorrt", "engines_dir": "e"}
    settings["tensorrt_vocoder"] = "float16"
    config = Token2WavConfig.from_mapping(settings)
    assert build.choose_runner(config) is RunnerKind.TENSORRT
    assert config.engines_dir == Path("e")
    with pytest.raises(ValueError, match="got 'int8', expected float32 or float16"):
        Token2WavConfig.from_mapping({**settings, "tensorrt_vocoder": "int8"})
    with pytest.raises(ValueError, match="got 'trt', expected auto, torch, packed, slots or tensorrt"):
        Token2WavConfig.from_mapping({**settings, "runner": "trt"})
    with pytest.raises(EngineUnfitError, match="needs device=cuda"):
        load_parts(config, checkpoint.flow, checkpoint.hift, SHAPES)
