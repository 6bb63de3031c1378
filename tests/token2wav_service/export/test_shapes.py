"""Sizes of the exported graphs: ranges, profiles, and the file they are read from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from token2wav_service.checkpoint.loader import build_flow
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES
from token2wav_service.config import SynthesisPolicy, Token2WavConfig
from token2wav_service.errors import ExportError
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import AxisRange, Precision, ShapeSettings, read_shapes
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_runner import token_buckets_of
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.runtime.tensorrt.planned import EstimatorSizes, PlannedSizes, VocoderSizes, is_held


def test_every_program_of_every_family_has_a_default_profile() -> None:
    """What a runner prepares must not fall out of its engines."""
    for family, (flow_config, hift) in OFFICIAL_SIZES.items():
        described = graphs.describe_graphs(flow_config, hift, Precision.FLOAT16)
        with torch.device("meta"):
            flow = build_flow(flow_config)
        shapes, stride = StepShapes(token_buckets=token_buckets_of(flow)), flow.stride
        window, _ = PoolSizes(1, SynthesisPolicy().estimator_recent_frames, 2, 900).rings(flow)
        for streams, tokens in shapes.programs():
            sizes: list[tuple[str, PlannedSizes]] = [(graphs.VOCODER, VocoderSizes(streams, tokens * stride + 8))]
            for prompt in Token2WavConfig(Path()).tensorrt_prompt_frames:
                sizes.append((graphs.ESTIMATOR_CHUNK, EstimatorSizes(streams, tokens * stride, prompt, window)))
            for name, planned in sizes:
                spec = described[name]
                axes = spec.complete(planned.axes())
                shape = {tensor.name: tensor.shape(axes) for tensor in spec.inputs}
                assert is_held([spec.shape_ranges(p) for p in spec.profiles], shape), (family, planned)


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
        pytest.param("a: [", "while parsing", id="not YAML"),
        pytest.param("[1, 2]", "should be a valid dictionary", id="no profiles"),
        pytest.param("{}", "at least 1 item", id="empty"),
        pytest.param("a: 3", "should be a valid dictionary", id="no axes"),
        pytest.param("a:\n  batch: [1, 2, 3]", "'streams', 'chunk_frames'", id="unknown axis"),
        pytest.param("a:\n  streams: [1, 2]", "Field required", id="two numbers"),
        pytest.param("a:\n  streams: [3, 2, 1]", "expected 0 < min <= opt <= max", id="out of order"),
    ],
)
def test_a_shapes_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ExportError, match=f"{complaint}(.|\n)*expected profile names"):
        read_shapes(path)
