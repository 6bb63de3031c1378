"""Writes a complete token2wav checkpoint of the official layout at a small size, with seeded random weights.

It speaks noise. It is for tests and for seeing the whole path run on any machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from token2wav_service.checkpoint.loader import (
    FLOW_WEIGHTS,
    FLOW_YAML,
    HIFT_CONFIG,
    HIFT_WEIGHTS,
    SPEAKER_ENCODER,
    SPEECH_TOKENIZER,
)
from token2wav_service.checkpoint.make_onnx import make_speaker_encoder, make_speech_tokenizer
from token2wav_service.checkpoint.make_weights import random_flow_state, random_hift_state
from token2wav_service.models.config import DiTConfig, EncoderConfig, FlowConfig, HiFTConfig

SMALL_FLOW = FlowConfig(
    input_size=64,
    encoder=EncoderConfig(
        input_size=64, output_size=64, num_blocks=2, num_up_blocks=1, attention_heads=4, linear_units=128
    ),
    estimator=DiTConfig(depth=2, num_heads=4, head_dim=16, hidden_size=64),
)
SMALL_HIFT = HiFTConfig(base_channels=32, f0_cond_channels=24)


def make_random_token2wav(
    directory: Path, seed: int, flow: FlowConfig = SMALL_FLOW, hift: HiFTConfig = SMALL_HIFT
) -> None:
    """Write flow.yaml, flow.pt, hift.pt, hift_config.json and the two ONNX files into `directory` (made if missing).

    Equal seeds and sizes give equal files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FLOW_YAML).write_text(flow_yaml(flow), encoding="utf-8")
    torch.save(random_flow_state(flow, seed), directory / FLOW_WEIGHTS)
    torch.save(random_hift_state(hift, seed), directory / HIFT_WEIGHTS)
    (directory / HIFT_CONFIG).write_text(json.dumps(hift_arguments(hift), indent=1) + "\n", encoding="utf-8")
    make_speaker_encoder(directory / SPEAKER_ENCODER, seed)
    make_speech_tokenizer(directory / SPEECH_TOKENIZER, seed)


def flow_yaml(config: FlowConfig) -> str:
    """Return the text of flow.yaml: the official tags and nesting with the values of `config`."""
    encoder, estimator = config.encoder, config.estimator
    return f"""\
flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec
  input_size: {config.input_size}
  output_size: {config.output_size}
  spk_embed_dim: {config.spk_embed_dim}
  output_type: mel
  vocab_size: {config.vocab_size}
  encoder: !new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2
    input_size: {encoder.input_size}
    output_size: {encoder.output_size}
    input_layer: linear
    pre_lookahead_len: {encoder.pre_lookahead_len}
    num_blocks: {encoder.num_blocks}
    num_up_blocks: {encoder.num_up_blocks}
    up_stride: {encoder.up_stride}
    up_scale_factor: {encoder.up_scale_factor}
    attention_heads: {encoder.attention_heads}
    pos_enc_layer_type: rel_pos_espnet
    selfattention_layer_type: rel_selfattn
    key_bias: {str(encoder.key_bias).lower()}
    linear_units: {encoder.linear_units}
    dropout_rate: 0.1
    positional_dropout_rate: 0.1
    attention_dropout_rate: 0.1
    normalize_before: true
  decoder: !new:cosyvoice2.flow.flow_matching.CausalConditionalCFM
    inference_cfg_rate: {config.inference_cfg_rate}
    estimator: !new:cosyvoice2.flow.decoder_dit.DiT
      in_channels: {estimator.in_channels}
      out_channels: {estimator.out_channels}
      mlp_ratio: {estimator.mlp_ratio}
      depth: {estimator.depth}
      num_heads: {estimator.num_heads}
      head_dim: {estimator.head_dim}
      hidden_size: {estimator.hidden_size}
"""


def hift_arguments(config: HiFTConfig) -> dict[str, Any]:
    """Return the vocoder's constructor arguments under their official names and nesting."""
    return {
        "in_channels": config.in_channels,
        "base_channels": config.base_channels,
        "nb_harmonics": config.nb_harmonics,
        "sampling_rate": config.sampling_rate,
        "nsf_alpha": config.nsf_alpha,
        "nsf_sigma": config.nsf_sigma,
        "nsf_voiced_threshold": config.nsf_voiced_threshold,
        "upsample_rates": config.upsample_rates,
        "upsample_kernel_sizes": config.upsample_kernel_sizes,
        "istft_params": {"n_fft": config.istft_n_fft, "hop_len": config.istft_hop},
        "resblock_kernel_sizes": config.resblock_kernel_sizes,
        "resblock_dilation_sizes": config.resblock_dilation_sizes,
        "source_resblock_kernel_sizes": config.source_resblock_kernel_sizes,
        "source_resblock_dilation_sizes": config.source_resblock_dilation_sizes,
        "lrelu_slope": config.lrelu_slope,
        "audio_limit": config.audio_limit,
        "f0_predictor": {"num_class": 1, "in_channels": config.in_channels, "cond_channels": config.f0_cond_channels},
    }
