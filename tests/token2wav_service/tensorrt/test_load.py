"""From built engines to audio. FAKE TensorRT, documented interface: it runs our own modules on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from servicekit.file_sums import sha256_of_file
from tests.token2wav_service.engine.factory import (
    ManualClock,
    SeededExtractor,
    audio_of,
    drain,
    make_prompt,
    push_all,
    tokens_of,
)
from tests.token2wav_service.streaming.flow_factory import make_flow, make_hift
from tests.token2wav_service.tensorrt.executors import ModuleExecutor
from tests.token2wav_service.tensorrt.fake_tensorrt import FakeTensorRT
from tests.token2wav_service.tensorrt.small import HOST, Steps, tensorrt
from token2wav_service.build import choose_runner
from token2wav_service.config import HistoryPolicy, RunnerKind, SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceStore
from token2wav_service.errors import EngineUnfitError
from token2wav_service.export.modules import EstimatorChunk
from token2wav_service.export.samples import sample_inputs
from token2wav_service.export.tensorrt.build import EngineRequest, ensure_engine
from token2wav_service.export.tensorrt.certify import Case, ReferenceCertifier
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, describe_graphs
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.report import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.tensorrt.load import Buckets, assemble_solver, load_solver
from token2wav_service.runtime.tensorrt.manifest import EngineProfile, GpuHost
from token2wav_service.runtime.tensorrt.types import BuildOptions
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import StreamOptions

POLICY = SynthesisPolicy(
    history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1, estimator_recent_frames=10, conformer_recent_frames=12
)
BUCKETS = Buckets((1, 2), (4, 6))
SIZES = PoolSizes(streams=2, estimator_recent=10, conformer_recent=12, max_prompt_frames=32)


class Checkpoint:
    """A folder with something to hash, the models, and an engine built for them."""

    def __init__(self, folder: Path) -> None:
        self.flow: Flow = make_flow()
        self.config = Token2WavConfig(folder, synthesis=POLICY, tensorrt_prompt_frames=(12, 32))
        for name in ("flow.yaml", "flow.pt"):
            (folder / name).write_text(f"stands for {name}")
        self.spec = describe_graphs(self.flow.config, make_hift().config, Precision.FLOAT32)[ESTIMATOR_CHUNK]
        module = EstimatorChunk(self.flow.decoder.estimator, Precision.FLOAT32)
        self.fake = FakeTensorRT(read_graph=lambda _: ModuleExecutor(self.spec, module))
        self.build(folder)

    def build(self, folder: Path) -> None:
        onnx = folder / "estimator.onnx"
        onnx.write_bytes(b"the fake knows its graph")
        sources = {name: sha256_of_file(folder / name) for name in ("flow.yaml", "flow.pt")}
        profiles = tuple(EngineProfile(p.name, self.spec.shape_ranges(p)) for p in self.spec.profiles)
        wanted = EngineRequest(
            ESTIMATOR_CHUNK, "float32", onnx, sha256_of_file(onnx), sources, profiles, BuildOptions()
        )
        ensure_engine(wanted, HOST, folder / "engines", lambda: tensorrt(self.fake), self.certifier(), Steps())

    def certifier(self) -> ReferenceCertifier:
        plain = EstimatorChunk(self.flow.decoder.estimator, None)

        def reference(inputs: Any) -> dict[str, torch.Tensor]:
            made = plain(*(inputs[tensor.name] for tensor in self.spec.inputs))
            return dict(zip((tensor.name for tensor in self.spec.outputs), made, strict=True))

        sizes = {"rows": 4, "prompt_rows": 2, "chunk_frames": 4, "prompt_frames": 5, "window_frames": 3}
        return ReferenceCertifier(
            [Case(sizes, sample_inputs(self.spec, sizes, 0))], reference, 55.0, torch.device("cpu")
        )

    def solver(self, host: GpuHost = HOST, **changes: Any) -> Any:
        config = replace(self.config, **changes)
        return assemble_solver(
            config, self.flow, make_hift(), SIZES.max_prompt_frames, tensorrt(self.fake), host, BUCKETS
        )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def speak(runner: Any) -> list[Any]:
    config = replace(Token2WavConfig(Path("unused"), synthesis=POLICY), max_batch_size=2)
    engine = Token2WavEngine(
        config, VoiceStore(SeededExtractor(), runner, config.voice_cache_bytes), runner, ManualClock()
    )
    streams = []
    for seed, tokens in enumerate((4, 13)):
        voice_id = engine.voices.register(make_prompt(seed, tokens=6 + 8 * seed)).voice_id
        streams.append(engine.open_stream(voice_id, StreamOptions(seed=seed)))
        push_all(engine, streams[-1], tokens_of(tokens, seed), 4)
    results = drain(engine)
    return [audio_of(results, stream) for stream in streams]


@pytest.mark.slow
def test_streams_through_the_engine_equal_the_plain_modules(checkpoint: Checkpoint) -> None:
    """Bound shapes, choice of prompt size and profile, caches, rings that overflow: the whole way."""
    solver = checkpoint.solver()
    hift = fold_weight_norm(make_hift())
    runs = checkpoint.fake._journal.runs
    got = speak(SlotRunner(checkpoint.flow, hift, POLICY, SIZES, BUCKETS.streams, BUCKETS.tokens, solver))
    assert checkpoint.fake._journal.runs == runs + 3, "every step runs in the engine"
    plain = speak(ModelRunner(StreamFlow(make_flow(), POLICY), StreamVocoder(make_hift(), POLICY)))
    for mine, expected in zip(got, plain, strict=True):
        assert snr_db(torch.from_numpy(mine), torch.from_numpy(np.asarray(expected))) >= WAVE_SNR_DB


@pytest.mark.parametrize(
    ("host", "changes", "reason"),
    [
        pytest.param(replace(HOST, architecture="sm80"), {}, "it is for sm90, this GPU is sm80", id="another GPU"),
        pytest.param(
            replace(HOST, tensorrt="11.4.0.106"),
            {},
            "for TensorRT 10.16.1.11, here is 11.4.0.106",
            id="another version",
        ),
        pytest.param(HOST, {"engines_dir": Path("nowhere")}, "there is no engine of estimator_chunk", id="no engine"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_command(
    checkpoint: Checkpoint, host: GpuHost, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(EngineUnfitError) as caught:
        checkpoint.solver(host, **changes)
    assert reason in str(caught.value)
    folder = changes.get("engines_dir", checkpoint.config.model_dir / "engines")
    command = f"cosydit build-engines {checkpoint.config.model_dir} --engines-dir {folder} --precision float32"
    assert f"run: {command}" in str(caught.value)


def test_an_engine_of_another_checkpoint_or_without_its_file_is_refused(checkpoint: Checkpoint) -> None:
    folder = checkpoint.config.model_dir
    (folder / "flow.pt").write_text("other weights")
    with pytest.raises(EngineUnfitError, match=r"it was built from another flow\.pt"):
        checkpoint.solver()
    (folder / "flow.pt").write_text("stands for flow.pt")
    next((folder / "engines").glob("*.engine")).unlink()
    with pytest.raises(EngineUnfitError, match="the engine file is missing"):
        checkpoint.solver()


def test_a_plan_that_tensorrt_refuses_is_an_error_with_its_message(checkpoint: Checkpoint) -> None:
    engine = next((checkpoint.config.model_dir / "engines").glob("*.engine"))
    engine.write_bytes(b"x" * engine.stat().st_size)
    with pytest.raises(EngineUnfitError, match=r"TensorRT refuses the engine:\n  the plan is of version none"):
        checkpoint.solver()


def test_an_engine_that_wants_shapes_from_the_host_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.fake._shape_tensors = ("lengths",)
    with pytest.raises(EngineUnfitError, match=r"tensors \['lengths'\] of the engine give shapes"):
        checkpoint.solver()


def test_the_runner_is_a_setting_and_needs_a_gpu(checkpoint: Checkpoint) -> None:
    settings = {"model_dir": "m", "runner": "tensorrt", "engines_dir": "e", "tensorrt_prompt_frames": "250,900"}
    config = Token2WavConfig.from_mapping(settings)
    assert choose_runner(config) is RunnerKind.TENSORRT
    assert (config.engines_dir, config.tensorrt_prompt_frames) == (Path("e"), (250, 900))
    with pytest.raises(ValueError, match="expected ascending numbers"):
        Token2WavConfig.from_mapping({**settings, "tensorrt_prompt_frames": "900,250"})
    with pytest.raises(EngineUnfitError, match="needs device=cuda"):
        load_solver(config, checkpoint.flow, make_hift(), 900)
