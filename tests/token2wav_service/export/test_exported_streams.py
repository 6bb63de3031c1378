"""Whole chunk loops from exported files alone, under ONNX Runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.token2wav_service.export.checkpoints import GOLDEN
from tests.token2wav_service.export.conftest import STREAM_GRAPHS
from tests.workers import is_whole
from token2wav_service.config import SynthesisPolicy
from token2wav_service.errors import CheckpointError, ExportError
from token2wav_service.export.build import Models
from token2wav_service.export.compare import Sweep, compare_graph, verdicts
from token2wav_service.export.directory import ExportDirectory, ExportOptions
from token2wav_service.export.onnx_models import OnnxFlow, OnnxHiFT, open_flow, open_vocoder
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.flow.block_flow import UNMASKED, UNMASKED_ESTIMATOR, BlockFlow
from token2wav_service.models.flow.block_stream import BlockStreamFlow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.streaming import FlowInput, VocoderInput
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.replay.report import format_rows
from token2wav_service.replay.run import replay_exported

pytestmark = pytest.mark.slow

SWEEP = Sweep(streams=(1, 3), frames=(2, 30), history=(1, 40))


@pytest.mark.skipif(not is_whole(), reason="its graphs take two minutes to export; the nightly run has it")
def test_golden_streams_come_out_of_the_exported_files(exported: Path) -> None:
    report = replay_exported(GOLDEN, exported)
    failed = [row for row in report.rows if not row.passed]
    assert not failed, "\n" + format_rows(failed)
    waves = [row for row in report.rows if ".wav" in row.output]
    assert {row.output.split(".")[0] for row in waves} == {"f_stream/equal15", "f_stream/noisy"}


@pytest.mark.parametrize("name", STREAM_GRAPHS)
def test_every_file_equals_the_plain_model_over_a_sweep_of_sizes(
    stream_checkpoint: Path, exported: Path, name: str
) -> None:
    models = Models(stream_checkpoint)
    spec = graphs.describe_graphs(models.flow.config, models.hift.config, Precision.FLOAT32)[name]
    compared = list(compare_graph(exported, spec, models, SWEEP))
    assert all(one.passed for one in compared), verdicts(compared)


def test_a_changed_weight_is_out_of_tolerance(stream_checkpoint: Path, exported: Path) -> None:
    models = Models(stream_checkpoint)
    with torch.no_grad():
        models.hift.f0_predictor.classifier.weight.mul_(1.001)
    spec = graphs.describe_graphs(models.flow.config, models.hift.config, Precision.FLOAT32)[graphs.F0_PREDICTOR]
    (_, by_file) = verdicts(list(compare_graph(exported, spec, models, SWEEP)))
    assert not by_file.passed


@torch.inference_mode()
def test_streams_of_different_history_batched_under_onnx_runtime_equal_single_ones_and_the_plain_models(
    stream_checkpoint: Path, exported: Path
) -> None:
    policy = SynthesisPolicy(ode_steps=2)
    mels = [_mels_of_two(StreamFlow(flow, policy)) for flow in (OnnxFlow(exported), Models(stream_checkpoint).flow)]
    for by_files, plain in zip(*mels, strict=True):
        torch.testing.assert_close(by_files, plain, atol=1e-4, rtol=0)


def _mels_of_two(flow: StreamFlow) -> list[torch.Tensor]:
    """Return what two streams of different history get in one batch, after comparing it with each of them alone."""
    generator = torch.Generator().manual_seed(0)
    speaker = torch.randn(192, generator=generator)
    tokens = torch.randint(0, 512, (40,), generator=generator)
    voice = flow.prepare_voice(tokens, torch.randn(80, 80, generator=generator), speaker)
    _, (later,) = flow.forward([FlowInput(voice, tokens[:13], speaker, 1, False)])
    rows = [FlowInput(voice, tokens[:9], speaker, 0, False), FlowInput(later, tokens[10:17], speaker, 1, True)]
    together, _ = flow.forward(rows)
    for row, mel in zip(rows, together, strict=True):
        ((alone,), _) = flow.forward([row])
        torch.testing.assert_close(mel, alone, atol=1e-4, rtol=0)
    return list(together)


@torch.inference_mode()
def test_a_block_masked_family_speaks_from_its_files_as_from_its_modules(family_files: tuple[Path, Path]) -> None:
    """Prompt, chunks that end inside a block, a last one, two rows of different history, and the pieces' joins."""
    checkpoint, exported = family_files
    plain, by_files = Models(checkpoint), open_flow(exported)
    assert isinstance(plain.flow, BlockFlow) and isinstance(by_files, BlockFlow)
    mels = [_mels_of_a_stream(flow) for flow in (plain.flow, by_files)]
    for expected, mel in zip(*mels, strict=True):
        torch.testing.assert_close(mel, expected, atol=1e-4, rtol=0)
    if isinstance(plain.hift, CausalHiFT):
        on_file = open_vocoder(exported)
        assert isinstance(on_file, CausalHiFT)
        waves = [_wave_of(hift, mels[0][:3]) for hift in (plain.hift, on_file)]
        torch.testing.assert_close(*waves, atol=1e-4, rtol=0)
        assert waves[0].abs().max() > 1e-3


def _mels_of_a_stream(flow: BlockFlow) -> list[torch.Tensor]:
    streamed = BlockStreamFlow(flow, SynthesisPolicy(ode_steps=2))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 100, (60,), generator=generator)
    prompt, speaker = torch.randn(50, 80, generator=generator), torch.randn(192, generator=generator)
    voice = state = streamed.run_prompt(tokens[:25], prompt, speaker)
    mels = []
    for start, end, is_last in ((0, 9, False), (9, 33, False), (33, 36, True)):
        (mel,), (state,) = streamed.forward([FlowInput(state, tokens[start:end], speaker, 3, is_last)])
        mels.append(mel)
    begun = streamed.run_prompt(tokens[:4], prompt[:8], speaker)
    rows = [FlowInput(voice, tokens[:8], speaker, 3, False), FlowInput(begun, tokens[:14], speaker, 3, True)]
    return [*mels, *streamed.forward(rows)[0]]


def _wave_of(hift: CausalHiFT, mels: list[torch.Tensor]) -> torch.Tensor:
    vocoder = CausalStreamVocoder(hift, SynthesisPolicy())
    state, pieces = vocoder.initial_state(), []
    for number, mel in enumerate(mels):
        (piece,), (state,) = vocoder.vocode([VocoderInput(state, mel, 5, number == len(mels) - 1)])
        pieces.append(piece)
    return torch.cat(pieces)


@torch.inference_mode()
def test_a_mask_that_the_files_do_not_compute_is_refused(family_files: tuple[Path, Path]) -> None:
    flow = open_flow(family_files[1])
    assert isinstance(flow, BlockFlow)
    tokens, lengths = torch.zeros(1, 20, dtype=torch.long), torch.tensor([20])
    inputs = (tokens, lengths, torch.tensor([True]), torch.randn(1, 192), torch.randn(1, 80, 40), 1)
    for mask in (UNMASKED, UNMASKED_ESTIMATOR):
        with pytest.raises(ExportError, match="block mask alone"):
            flow(*inputs, mask=mask)


def test_a_directory_of_one_family_takes_no_other_s_graphs(
    family_files: tuple[Path, Path], stream_checkpoint: Path
) -> None:
    with pytest.raises(ExportError, match=r"holds graphs of family cosyvoice.*give another --out"):
        ExportDirectory(stream_checkpoint, family_files[1], ExportOptions())


def test_a_family_s_golden_folder_that_is_missing_is_named(family_files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no golden folder cosyvoice"):
        replay_exported(tmp_path, family_files[1])


def test_the_vocoder_needs_no_checkpoint(exported: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(exported, tmp_path / "moved")
    hift: HiFT = OnnxHiFT(moved)
    mel = torch.randn(2, 80, 9)
    lengths = torch.tensor([9, 4])
    samples = hift(mel, torch.zeros(2, 1, 9 * 480), lengths)
    assert samples.shape == (2, 9 * 480)
    assert samples[0].abs().sum() > 0 and not samples[1, 4 * 480 :].any()


def test_an_incomplete_export_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="run `cosydit export"):
        OnnxFlow(tmp_path)


def test_bfloat16_is_refused_where_nothing_computes_it(exported: Path) -> None:
    with pytest.raises(ExportError, match="no bfloat16 on a CPU"):
        OnnxFlow(exported, Precision.BFLOAT16)


def test_golden_folders_that_are_missing_are_named(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no golden folder \*_flow"):
        replay_exported(tmp_path, exported)
