"""Writes the description files of checkpoints: the official tags and nesting with any sizes."""

from __future__ import annotations

import json
from typing import Any

from token2wav_service.models.config import CosyVoice2FlowConfig, CosyVoice3FlowConfig, FlowConfig, HiFTConfig


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


def cosyvoice2_yaml(config: CosyVoice2FlowConfig, hift: dict[str, Any]) -> str:
    """Return the text of cosyvoice2.yaml, without its LLM and what only training uses.

    Args:
        config: the flow's sizes.
        hift: the vocoder's, from `hift_arguments`.
    """
    encoder, estimator = config.encoder, config.estimator
    return (
        _HEAD.format(config=config, ratio=encoder.up_stride)
        + f"""\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
  input_size: {config.input_size}
  output_size: {config.output_size}
  spk_embed_dim: !ref <spk_embed_dim>
  output_type: mel
  vocab_size: {config.vocab_size}
  input_frame_rate: !ref <token_frame_rate>
  token_mel_ratio: !ref <token_mel_ratio>
  pre_lookahead_len: {encoder.pre_lookahead_len}
  encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
    input_size: {encoder.input_size}
    output_size: {encoder.output_size}
    attention_heads: {encoder.attention_heads}
    linear_units: {encoder.linear_units}
    num_blocks: {encoder.num_blocks}
    num_up_blocks: {encoder.num_up_blocks}
    static_chunk_size: !ref <chunk_size>
{_CFM.format(rate=config.inference_cfg_rate)}\
    estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
      in_channels: {estimator.in_channels}
      out_channels: {estimator.out_channels}
      channels: [{estimator.channels}]
      attention_head_dim: {estimator.head_dim}
      n_blocks: {estimator.n_blocks}
      num_mid_blocks: {estimator.num_mid_blocks}
      num_heads: {estimator.num_heads}
      act_fn: gelu
      static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
{_tree(hift)}"""
    )


def cosyvoice3_yaml(config: CosyVoice3FlowConfig, hift: dict[str, Any]) -> str:
    """Return the text of cosyvoice3.yaml; see `cosyvoice2_yaml`."""
    estimator = config.estimator
    return (
        _HEAD.format(config=config, ratio=config.token_mel_ratio)
        + f"""\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithDiT
  input_size: {config.input_size}
  output_size: {config.output_size}
  spk_embed_dim: !ref <spk_embed_dim>
  output_type: mel
  vocab_size: {config.vocab_size}
  input_frame_rate: !ref <token_frame_rate>
  token_mel_ratio: !ref <token_mel_ratio>
  pre_lookahead_len: {config.pre_lookahead_len}
  pre_lookahead_layer: !new:cosyvoice.transformer.upsample_encoder.PreLookaheadLayer
    in_channels: {config.input_size}
    channels: {config.lookahead_channels}
    pre_lookahead_len: {config.pre_lookahead_len}
{_CFM.format(rate=config.inference_cfg_rate)}\
    estimator: !new:cosyvoice.flow.DiT.dit.DiT
      dim: {estimator.dim}
      depth: {estimator.depth}
      heads: {estimator.heads}
      dim_head: {estimator.head_dim}
      ff_mult: {estimator.ff_mult}
      mel_dim: {estimator.mel_dim}
      mu_dim: {estimator.mu_dim}
      spk_dim: {estimator.spk_dim}
      out_channels: {estimator.out_channels}
      static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
hift: !new:cosyvoice.hifigan.generator.CausalHiFTGenerator
{_tree(hift)}"""
    )


_HEAD = """\
sample_rate: 24000
spk_embed_dim: {config.spk_embed_dim}
token_frame_rate: 25
token_mel_ratio: {ratio}
chunk_size: {config.block_tokens}
"""
_CFM = """\
  decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
    cfm_params: !new:omegaconf.DictConfig
      content:
        sigma_min: 1.0e-06
        solver: euler
        t_scheduler: cosine
        inference_cfg_rate: {rate}
"""


def _tree(values: dict[str, Any]) -> str:
    return "".join(f"  {key}: {json.dumps(value)}\n" for key, value in values.items())


def hift_arguments(config: HiFTConfig) -> dict[str, Any]:
    """Return the vocoder's constructor arguments under their official names and nesting."""
    ahead = {"conv_pre_look_right": config.conv_pre_look_right} if config.is_causal else {}
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
        **ahead,
    }
