"""Makes the checkpoints that the export is tested with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests import ASSETS
from token2wav_service.checkpoint import loader
from token2wav_service.checkpoint.make_random import make_random_token2wav
from token2wav_service.checkpoint.write_description import flow_yaml
from token2wav_service.models.config import DiTConfig, EncoderConfig, FlowConfig, HiFTConfig

GOLDEN = ASSETS / "golden"

TINY_FLOW = FlowConfig(
    input_size=8,
    encoder=EncoderConfig(
        input_size=8, output_size=8, num_blocks=1, num_up_blocks=1, attention_heads=2, linear_units=8
    ),
    estimator=DiTConfig(depth=1, num_heads=2, head_dim=4, hidden_size=8),
)
TINY_HIFT = HiFTConfig(base_channels=8, f0_cond_channels=8)


SHORT_HIFT = HiFTConfig(
    base_channels=8,
    f0_cond_channels=8,
    resblock_kernel_sizes=(3,),
    resblock_dilation_sizes=((1, 3),),
    source_resblock_dilation_sizes=((1,), (1,), (1,)),
)


def make_stream_checkpoint(directory: Path) -> Path:
    """Write a checkpoint whose vocoder has few blocks, too; returns `directory`."""
    make_random_token2wav(directory, 0, TINY_FLOW, SHORT_HIFT)
    return directory


def make_tiny_checkpoint(directory: Path, seed: int) -> Path:
    """Write a checkpoint whose models have one block each; returns `directory`."""
    make_random_token2wav(directory, seed, TINY_FLOW, TINY_HIFT)
    return directory


def copy_golden_checkpoint(directory: Path) -> Path:
    """Lay the golden weights out as a checkpoint; returns `directory`."""
    config = FlowConfig.from_mapping(json.loads((GOLDEN / "d_flow" / "config.json").read_text("utf-8")))
    (directory / loader.FLOW_YAML).write_text(flow_yaml(config), encoding="utf-8")
    torch.save(load_file(GOLDEN / "d_flow" / "weights.safetensors"), directory / loader.FLOW_WEIGHTS)
    torch.save(load_file(GOLDEN / "e_hift" / "weights.safetensors"), directory / loader.HIFT_WEIGHTS)
    shutil.copyfile(GOLDEN / "e_hift" / "config.json", directory / loader.HIFT_CONFIG)
    shutil.copyfile(ASSETS / "h_checkpoint" / "token2wav" / "campplus.onnx", directory / loader.SPEAKER_ENCODER)
    return directory
