"""Writes a complete token2wav checkpoint of the official layout at a small size, with seeded random weights.

It speaks noise. It is for tests and for seeing the whole path run on any machine.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
import yaml

from token2wav_service.checkpoint.family import FLOW_WEIGHTS, HIFT_WEIGHTS, SPEAKER_ENCODER, Family
from token2wav_service.checkpoint.loader import HIFT_CONFIG
from token2wav_service.checkpoint.make_onnx import make_speaker_encoder, make_speech_tokenizer
from token2wav_service.checkpoint.make_weights import random_flow_state, random_hift_state
from token2wav_service.models.config import (
    AnyFlowConfig,
    CosyVoice2FlowConfig,
    CosyVoice3FlowConfig,
    DiTConfig,
    EncoderConfig,
    FlowConfig,
    HiFTConfig,
    RotaryDiTConfig,
    UNetConfig,
)

SMALL_ENCODER = EncoderConfig(
    input_size=64, output_size=64, num_blocks=2, num_up_blocks=1, attention_heads=4, linear_units=128
)
SMALL_FLOW = FlowConfig(
    input_size=64, encoder=SMALL_ENCODER, estimator=DiTConfig(depth=2, num_heads=4, head_dim=16, hidden_size=64)
)
SMALL_HIFT = HiFTConfig(base_channels=32, f0_cond_channels=24)
SMALL_SIZES: dict[Family, tuple[AnyFlowConfig, HiFTConfig]] = {
    Family.STEP_AUDIO2: (SMALL_FLOW, SMALL_HIFT),
    Family.COSYVOICE2: (
        CosyVoice2FlowConfig(
            input_size=64,
            encoder=SMALL_ENCODER,
            estimator=UNetConfig(channels=32, head_dim=16, n_blocks=1, num_mid_blocks=2, num_heads=2),
        ),
        SMALL_HIFT,
    ),
    Family.COSYVOICE3: (
        CosyVoice3FlowConfig(lookahead_channels=64, estimator=RotaryDiTConfig(dim=64, depth=2, heads=4, head_dim=16)),
        dataclasses.replace(SMALL_HIFT, conv_pre_look_right=4),
    ),
}
OFFICIAL_SIZES: dict[Family, tuple[AnyFlowConfig, HiFTConfig]] = {
    Family.STEP_AUDIO2: (FlowConfig(), HiFTConfig()),
    Family.COSYVOICE2: (CosyVoice2FlowConfig(), HiFTConfig()),
    Family.COSYVOICE3: (CosyVoice3FlowConfig(), HiFTConfig(conv_pre_look_right=4)),
}


def make_random_token2wav(
    directory: Path, seed: int, flow: AnyFlowConfig = SMALL_FLOW, hift: HiFTConfig = SMALL_HIFT
) -> None:
    """Write a family's description, flow.pt, hift.pt and the two ONNX files into `directory` (made if missing).

    The flow's sizes say which family. Equal seeds and sizes give equal files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = write_description(directory, flow, hift).files
    torch.save(random_flow_state(flow, seed), directory / FLOW_WEIGHTS)
    torch.save(random_hift_state(hift, seed), directory / HIFT_WEIGHTS)
    make_speaker_encoder(directory / SPEAKER_ENCODER, seed)
    make_speech_tokenizer(directory / files.speech_tokenizer, seed)


def write_description(directory: Path, flow: AnyFlowConfig, hift: HiFTConfig) -> Family:
    """Write what says the models' sizes, under the official names and nesting; returns the family."""
    family = next(family for family, (small, _) in SMALL_SIZES.items() if type(small) is type(flow))
    trees = {"flow": _flow_tree(flow), "hift": hift_arguments(hift)}
    if family is Family.STEP_AUDIO2:
        text = json.dumps(trees.pop("hift"), indent=1) + "\n"
        (directory / HIFT_CONFIG).write_text(text, encoding="utf-8")
    text = yaml.safe_dump(trees, sort_keys=False)
    (directory / family.files.description).write_text(text, encoding="utf-8")
    return family


def _flow_tree(flow: AnyFlowConfig) -> dict[str, Any]:
    """Return the arguments of the flow's constructor."""
    estimator, rate = dataclasses.asdict(flow.estimator), {"inference_cfg_rate": flow.inference_cfg_rate}
    names = ("input_size", "output_size", "spk_embed_dim", "vocab_size")
    tree: dict[str, Any] = {name: getattr(flow, name) for name in names}
    if isinstance(flow, FlowConfig):
        return tree | {"encoder": dataclasses.asdict(flow.encoder), "decoder": {**rate, "estimator": estimator}}
    if isinstance(flow, CosyVoice2FlowConfig):
        tree["token_mel_ratio"] = flow.encoder.up_stride
        tree["pre_lookahead_len"] = flow.encoder.pre_lookahead_len
        tree["encoder"] = dataclasses.asdict(flow.encoder) | {"static_chunk_size": flow.block_tokens}
        estimator |= {"channels": [flow.estimator.channels], "attention_head_dim": flow.estimator.head_dim}
    else:
        tree["token_mel_ratio"], tree["pre_lookahead_len"] = flow.token_mel_ratio, flow.pre_lookahead_len
        tree["pre_lookahead_layer"] = {"in_channels": flow.input_size, "channels": flow.lookahead_channels}
        block_frames = flow.block_tokens * flow.token_mel_ratio
        estimator |= {"dim_head": flow.estimator.head_dim, "static_chunk_size": block_frames}
    return tree | {"decoder": {"cfm_params": {"content": rate}, "estimator": estimator}}


def hift_arguments(hift: HiFTConfig) -> dict[str, Any]:
    """Return the arguments of the vocoder's constructor."""
    tree = dataclasses.asdict(hift)
    tree["istft_params"] = {"n_fft": tree.pop("istft_n_fft"), "hop_len": tree.pop("istft_hop")}
    cond_channels = tree.pop("f0_cond_channels")
    tree["f0_predictor"] = {"num_class": 1, "in_channels": hift.in_channels, "cond_channels": cond_channels}
    return tree
