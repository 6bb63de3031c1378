"""From built engines to audio. FAKE TensorRT, documented interface: it runs our own modules on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

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
from tests.token2wav_service.tensorrt.small import CPU, HOST, Steps, tensorrt
from token2wav_service.build import choose_runner
from token2wav_service.config import HistoryPolicy, RunnerKind, SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceStore
from token2wav_service.errors import EngineUnfitError
from token2wav_service.export.modules import EstimatorChunk, VocoderStack
from token2wav_service.export.samples import sample_inputs
from token2wav_service.export.tensorrt.build import EngineRequest, ensure_engine
from token2wav_service.export.tensorrt.certify import MIN_SNR_DB, Case, ReferenceCertifier
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, VOCODER, describe_graphs
from token2wav_service.graphs.spec import GraphSpec, Precision
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.report import WAVE_SNR_DB, snr_db
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.tensorrt.load import EngineParts, ProgramSizes, assemble_parts, load_parts
from token2wav_service.runtime.tensorrt.manifest import EngineProfile, GpuHost
from token2wav_service.runtime.tensorrt.types import BuildOptions
from token2wav_service.runtime.tensorrt.vocoder import TensorRTNetwork
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import StreamOptions

POLICY = SynthesisPolicy(
    history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1, estimator_recent_frames=10, conformer_recent_frames=12
)
BUCKETS = ProgramSizes((1, 2), (4, 6))
SIZES = PoolSizes(streams=2, estimator_recent=10, conformer_recent=12, max_prompt_frames=32)


class Checkpoint:
    """A folder with something to hash, the models, and an engine built for them."""

    def __init__(self, folder: Path) -> None:
        self.flow: Flow = make_flow()
        self.config = Token2WavConfig(folder, synthesis=POLICY, tensorrt_prompt_frames=(12, 32))
        for name in ("flow.yaml", "flow.pt", "hift.pt"):
            (folder / name).write_text(f"stands for {name}")
        self.spec = describe_graphs(self.flow.config, make_hift().config, Precision.FLOAT32)[ESTIMATOR_CHUNK]
        module = EstimatorChunk(self.flow.decoder.estimator, Precision.FLOAT32)
        self.hift = fold_weight_norm(make_hift())
        self.modules = {ESTIMATOR_CHUNK: ModuleExecutor(self.spec, module)}
        self.fake = FakeTensorRT(read_graph=lambda content: self.modules[content.decode()])
        plain = EstimatorChunk(self.flow.decoder.estimator, None)
        sizes = {"rows": 4, "prompt_rows": 2, "chunk_frames": 4, "prompt_frames": 5, "window_frames": 3}
        self.build(self.spec, plain, sizes, ("flow.yaml", "flow.pt"))

    def build_vocoder(self, precision: Precision) -> None:
        spec = describe_graphs(self.flow.config, self.hift.config, Precision.FLOAT32, vocoder=precision)[VOCODER]
        self.modules[VOCODER] = ModuleExecutor(spec, VocoderStack(self.hift, precision))
        self.build(spec, VocoderStack(self.hift, None), spec.complete({"streams": 2, "mel_frames": 12}), ("hift.pt",))

    def build(self, spec: GraphSpec, plain: nn.Module, sizes: dict[str, int], files: Sequence[str]) -> None:
        folder = self.config.model_dir
        onnx = folder / f"{spec.file_name}"
        onnx.write_bytes(spec.name.encode())
        sources = {name: sha256_of_file(folder / name) for name in files}
        profiles = tuple(EngineProfile(p.name, spec.shape_ranges(p)) for p in spec.profiles)
        wanted = EngineRequest(
            spec.name, spec.precision.value, onnx, sha256_of_file(onnx), sources, profiles, BuildOptions()
        )

        def reference(inputs: Any) -> dict[str, torch.Tensor]:
            made = plain(*(inputs[tensor.name] for tensor in spec.inputs))
            made = made if isinstance(made, tuple) else (made,)
            return dict(zip((tensor.name for tensor in spec.outputs), made, strict=True))

        bound = MIN_SNR_DB[spec.precision.value]
        certifier = ReferenceCertifier([Case(sizes, sample_inputs(spec, sizes, 0))], reference, bound, CPU)
        ensure_engine(wanted, HOST, folder / "engines", lambda: tensorrt(self.fake), certifier, Steps())

    def parts(self, host: GpuHost = HOST, **changes: Any) -> EngineParts:
        config = replace(self.config, **changes)
        return assemble_parts(config, self.flow, self.hift, SIZES.max_prompt_frames, tensorrt(self.fake), host, BUCKETS)

    def runner(self, **changes: Any) -> SlotRunner:
        parts = self.parts(**changes)
        return SlotRunner(
            self.flow, self.hift, POLICY, SIZES, BUCKETS.streams, BUCKETS.tokens, parts.solver, parts.network
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
    runs = checkpoint.fake._journal.runs
    got = speak(checkpoint.runner())
    assert checkpoint.fake._journal.runs == runs + 3, "every step runs in the engine"
    checkpoint.build_vocoder(Precision.FLOAT32)
    runs = checkpoint.fake._journal.runs
    both = speak(checkpoint.runner())
    assert checkpoint.fake._journal.runs == runs + 6, "every step of the vocoder does, too"
    plain = speak(ModelRunner(StreamFlow(make_flow(), POLICY), StreamVocoder(make_hift(), POLICY)))
    for *mine, expected in zip(got, both, plain, strict=True):
        for samples in mine:
            assert snr_db(torch.from_numpy(samples), torch.from_numpy(np.asarray(expected))) >= WAVE_SNR_DB


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.FLOAT16])
def test_the_vocoder_s_engine_equals_the_plain_convolutions(checkpoint: Checkpoint, precision: Precision) -> None:
    checkpoint.build_vocoder(precision)
    network = checkpoint.parts(tensorrt_vocoder=precision.value).network
    assert isinstance(network, TensorRTNetwork)
    frames = BUCKETS.tokens[0] * checkpoint.flow.config.encoder.up_stride + 8
    mel, lengths = torch.randn(2, frames, 80), torch.tensor([frames, 5])
    mel[1, 5:] = 0
    columns = frames * checkpoint.hift.config.frame_samples // checkpoint.hift.config.istft_hop + 1
    spectrum = torch.randn(2, columns, checkpoint.hift.config.istft_n_fft + 2)
    runs = checkpoint.fake._journal.runs
    got = network.spectra(mel, spectrum, lengths).transpose(1, 2)
    assert checkpoint.fake._journal.runs == runs + 1
    expected = checkpoint.hift.spectra(mel.transpose(1, 2), spectrum.transpose(1, 2), lengths)
    assert snr_db(got[0], expected[0]) >= MIN_SNR_DB[precision.value]


def test_without_an_engine_of_the_vocoder_the_fused_kernels_run_it(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.build_vocoder(Precision.FLOAT32)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.parts(tensorrt_vocoder="float16").network is None
    assert "fused kernels run the vocoder" in caplog.text
    assert "--only vocoder --vocoder-precision float16" in caplog.text


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


def test_a_plan_that_tensorrt_refuses_is_an_error_with_its_message(checkpoint: Checkpoint) -> None:
    engine = next((checkpoint.config.model_dir / "engines").glob("*.engine"))
    engine.write_bytes(b"x" * engine.stat().st_size)
    with pytest.raises(EngineUnfitError, match=r"TensorRT refuses the engine:\n  the plan is of version none"):
        checkpoint.parts()


def test_an_engine_that_wants_shapes_from_the_host_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.fake._shape_tensors = ("lengths",)
    with pytest.raises(EngineUnfitError, match=r"tensors \['lengths'\] of the engine give shapes"):
        checkpoint.parts()


def test_the_runner_is_a_setting_and_needs_a_gpu(checkpoint: Checkpoint) -> None:
    settings = {"model_dir": "m", "runner": "tensorrt", "engines_dir": "e", "tensorrt_prompt_frames": "250,900"}
    settings["tensorrt_vocoder"] = "float16"
    config = Token2WavConfig.from_mapping(settings)
    assert choose_runner(config) is RunnerKind.TENSORRT
    assert (config.engines_dir, config.tensorrt_prompt_frames) == (Path("e"), (250, 900))
    assert config.tensorrt_vocoder == "float16"
    with pytest.raises(ValueError, match="got 'int8', expected float32 or float16"):
        Token2WavConfig.from_mapping({**settings, "tensorrt_vocoder": "int8"})
    with pytest.raises(ValueError, match="expected ascending numbers"):
        Token2WavConfig.from_mapping({**settings, "tensorrt_prompt_frames": "900,250"})
    with pytest.raises(EngineUnfitError, match="needs device=cuda"):
        load_parts(config, checkpoint.flow, checkpoint.hift, 900)
