"""Sizes of the exported graphs: ranges, profiles, and the file they are read from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from token2wav_service.errors import ExportError
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.shapes import AxisRange, ShapeSettings, read_shapes
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.config import FlowConfig, HiFTConfig


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 3), (1, 4, 3)])
def test_a_range_out_of_order_or_empty_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected 0 < min <= opt <= max"):
        AxisRange(*sizes)


def test_chunks_of_64_streams_of_206_frames_on_a_history_of_1000_fit_by_default() -> None:
    described = graphs.describe_graphs(FlowConfig(), HiFTConfig(), Precision.FLOAT16)
    estimator, encoder = described[graphs.ESTIMATOR_CHUNK], described[graphs.ENCODER_CHUNK]
    largest = estimator.shape_ranges(estimator.profiles[0])
    assert largest["x"].max == (2 * 64, 80, 206)
    assert largest["prompt_kv"].max[3] + largest["window_kv"].max[3] == 1000
    assert encoder.limit("history_frames") >= 1000
    assert encoder.limit("streams") == 64


def test_a_voice_prompt_has_a_profile_of_its_own() -> None:
    encoder = graphs.describe_graphs(FlowConfig(), HiFTConfig(), Precision.FLOAT32)[graphs.ENCODER_CHUNK]
    voice = next(profile for profile in encoder.profiles if profile.name.endswith("voice"))
    prompt = ShapeSettings().prompt_frames.max
    assert encoder.shape_ranges(voice)["tokens"].max == (1, prompt // 2 + 3)


def test_derived_axes_follow_from_the_inputs() -> None:
    described = graphs.describe_graphs(FlowConfig(), HiFTConfig(), Precision.FLOAT32)
    assert described[graphs.VOCODER].complete({"streams": 1, "mel_frames": 10})["spectrum_frames"] == 1201
    assert described[graphs.ENCODER_CHUNK].complete({"chunk_tokens": 18})["chunk_frames"] == 30


@pytest.mark.slow
def test_the_descriptions_need_no_torch() -> None:
    code = "import sys, token2wav_service.graphs.catalogue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_shapes_file_names_profiles_and_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text("small:\n  streams: [1, 2, 4]\nlarge:\n  chunk_frames: [2, 100, 400]\n", encoding="utf-8")
    small, large = read_shapes(path)
    assert (small.name, small.streams, small.chunk_frames) == (
        "small",
        AxisRange(1, 2, 4),
        ShapeSettings().chunk_frames,
    )
    assert (large.name, large.chunk_frames) == ("large", AxisRange(2, 100, 400))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("a: [", "can't be read as YAML", id="not YAML"),
        pytest.param("[1, 2]", "expected profile names", id="no profiles"),
        pytest.param("a: 3", "expected axes", id="no axes"),
        pytest.param("a:\n  batch: [1, 2, 3]", "unknown axes", id="unknown axis"),
        pytest.param("a:\n  streams: [1, 2]", "expected .min, opt, max.", id="two numbers"),
        pytest.param("a:\n  streams: [3, 2, 1]", "expected .min, opt, max.", id="out of order"),
    ],
)
def test_a_shapes_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ExportError, match=complaint):
        read_shapes(path)
