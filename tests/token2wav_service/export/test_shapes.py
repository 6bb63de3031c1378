"""Sizes of the exported graphs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from token2wav_service import graphs
from token2wav_service.checkpoint.loader import build_flow
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES
from token2wav_service.config import SynthesisPolicy
from token2wav_service.graphs import Precision
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_runner import token_buckets_of
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.runtime.tensorrt.planned import Axes, estimator_axes, holds, vocoder_axes
from token2wav_service.runtime.tensorrt.solver import PROMPT_SIZES


def test_the_graphs_hold_every_program_of_every_family() -> None:
    """What a runner prepares must not fall out of its engines."""
    for family, (flow_config, hift) in OFFICIAL_SIZES.items():
        with torch.device("meta"):
            flow = build_flow(flow_config)
        shapes, stride = StepShapes(token_buckets=token_buckets_of(flow)), flow.stride
        window, _ = PoolSizes(1, SynthesisPolicy().estimator_recent_frames, 2, 900).rings(flow)
        for streams, tokens in shapes.programs():
            sizes: list[tuple[str, Axes]] = [(graphs.VOCODER, vocoder_axes(streams, tokens * stride + 8))]
            for prompt in PROMPT_SIZES:
                sizes.append((graphs.ESTIMATOR_CHUNK, estimator_axes(streams, tokens * stride, prompt, window)))
            for name, planned in sizes:
                spec = graphs.describe_graph(name, flow_config, hift, Precision.FLOAT16)
                axes = spec.complete(dict(planned))
                shape = {tensor.name: tensor.shape(axes) for tensor in spec.inputs}
                assert holds(spec.shape_ranges(), shape), (family, planned)


@pytest.mark.slow
def test_the_descriptions_need_no_torch() -> None:
    code = "import sys, token2wav_service.graphs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
