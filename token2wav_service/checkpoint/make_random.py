"""Writes a complete token2wav checkpoint of the official layout at a small size, with seeded random weights.

It speaks audible, unclipped noise. It is for tests and for seeing the whole path run on any machine. Every parameter is
drawn, those that training starts at zero too, so that nothing passes a test by being absent; draws depend on the seed
and the parameter's name only.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml
from torch import Tensor, nn

from token2wav_service.checkpoint.family import FLOW_WEIGHTS, HIFT_WEIGHTS, SPEAKER_ENCODER, Family
from token2wav_service.checkpoint.loader import HIFT_CONFIG, build_flow, build_vocoder
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

_FBANK_BINS = 80
_EMBEDDING_SIZE = 192
_SPEAKER_HIDDEN = 64
_FBANK_SCALE = 0.3
"""Scale for the tanh, which wants about 1: mean-subtracted log energies have a standard deviation near 3."""
_LOG_MEL_BINS = 128
_FRAMES_PER_TOKEN = 4
_LEVELS = 3
_CODE_SIZE = 8
_BAND_BINS = 8
_CODE_SPREAD = 8.0
"""Standard deviation of a code's value per unit of the log-mel's: spreads speech over all three levels."""

# An ONNX version that is old enough for every ONNX Runtime from 1.18 on. Type 6 is int32.
_HEAD = '<ir_version: 8, opset_import: ["" : 13], producer_name: "cosydit">\n'
_SPEAKER_ENCODER = """
campplus_standin (float[B, T, 80] input) => (float[B, 192] output) {
  projected = MatMul(input, frame_weight)
  shifted = Add(projected, frame_bias)
  hidden = Tanh(shifted)
  squared = Mul(hidden, hidden)
  mean = ReduceMean<axes = [1], keepdims = 0>(hidden)
  power = ReduceMean<axes = [1], keepdims = 0>(squared)
  statistics = Concat<axis = 1>(mean, power)
  mixed = MatMul(statistics, out_weight)
  output = Add(mixed, out_bias)
}
"""
_SPEECH_TOKENIZER = """
speech_tokenizer_standin (float[1, 128, T] feats, int32[1] feats_length) => (int32[1, tokens] indices) {
  shape = Shape(feats)
  frames_64 = Gather<axis = 0>(shape, time_axis)
  frames = Cast<to = 6>(frames_64)
  positions = Range(zero_frame, frames, one_frame)
  valid = Less(positions, feats_length)
  masked = Where(valid, feats, zero)
  codes = Conv<kernel_shape = [4], strides = [4], pads = [0, 3]>(masked, taps)
  bounded = Tanh(codes)
  scaled = Mul(bounded, inside)
  rounded = Round(scaled)
  digits = Add(rounded, one)
  placed = Mul(digits, place_values)
  numbers = ReduceSum<keepdims = 0>(placed, digit_axis)
  indices = Cast<to = 6>(numbers)
}
"""


def make_speaker_encoder(path: Path, seed: int) -> None:
    """Write a CAM++ stand-in: input `input` [B, T, 80] float32, output `output` [B, 192] float32.

    Frames pass a tanh layer; mean and mean square over time pass a linear layer.
    """
    rng = np.random.default_rng([seed, 1])
    weights = {
        "frame_weight": _normal(rng, (_FBANK_BINS, _SPEAKER_HIDDEN), _FBANK_SCALE / _FBANK_BINS**0.5),
        "frame_bias": _normal(rng, (_SPEAKER_HIDDEN,), 0.1),
        "out_weight": _normal(rng, (2 * _SPEAKER_HIDDEN, _EMBEDDING_SIZE), 1.0),
        "out_bias": _normal(rng, (_EMBEDDING_SIZE,), 0.1),
    }
    _save(path, _SPEAKER_ENCODER, weights)


def make_speech_tokenizer(path: Path, seed: int) -> None:
    """Write a speech tokenizer stand-in: log-mel [1, 128, T] float32 and its length [1] int32 to ids [1, ceil(T / 4)].

    Finite scalar quantisation, as the official model does it: a projection to 8 values, tanh, rounding to 3 levels,
    read as the digits of a number in base 3. Frames past the length count as zero.
    """
    rng = np.random.default_rng([seed, 2])
    taps = rng.standard_normal((_CODE_SIZE, _LOG_MEL_BINS // _BAND_BINS, _BAND_BINS, _FRAMES_PER_TOKEN))
    taps -= taps.mean(axis=(2, 3), keepdims=True)  # loudness and tilt, common to all speech, then change no token
    taps = taps.reshape(_CODE_SIZE, _LOG_MEL_BINS, _FRAMES_PER_TOKEN)
    taps *= _CODE_SPREAD / np.linalg.norm(taps, axis=(1, 2), keepdims=True)
    weights: dict[str, Any] = {
        "taps": taps.astype(np.float32),
        "place_values": (_LEVELS ** np.arange(_CODE_SIZE, dtype=np.float32)).reshape(1, -1, 1),
        **{"inside": np.float32(0.999), "one": np.float32(1), "zero": np.float32(0)},
        **{"zero_frame": np.int32(0), "one_frame": np.int32(1)},
        **{"time_axis": np.int64(2), "digit_axis": np.array([1], np.int64)},
    }
    _save(path, _SPEECH_TOKENIZER, weights)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _save(path: Path, graph: str, weights: dict[str, Any]) -> None:
    # NOTE: imported here, so that the demo voice is unpacked without it.
    import onnx
    from onnx import numpy_helper, parser

    model = parser.parse_model(_HEAD + graph)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items())
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


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

_SMALL = 0.1
"""Spread of gains around 1 and of biases around 0."""
_MEL_LEVELS = (-4.0, -8.0)
"""Mean log-mel of the lowest and the highest bin: about that of speech."""
_PITCH_HZ = 150.0
_PITCH_SPREAD_HZ = 40.0
_RESIDUAL_GAIN = 0.3
_SOURCE_GAIN = 4.0
"""Gain of the source, whose amplitude is near 0.1, so that the pitch is heard in the noise."""
_MAGNITUDE_GAIN, _PHASE_GAIN = 0.25, 2.0
_LOG_MAGNITUDES = (0.5, -2.0)
"""Bias from the lowest to the highest bin of the vocoder's spectrum; sets the loudness, darker than white."""
_LOG_MAGNITUDE_OF_DC = -4.0
_VELOCITY_BIASES = {
    "decoder.estimator.final_layer.linear.bias",
    "decoder.estimator.final_proj.bias",
    "decoder.estimator.proj_out.bias",
}
"""Biases of the estimators' last layers."""


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
    steps = {"n_timesteps": flow.ode_steps}
    names = ("input_size", "output_size", "spk_embed_dim", "vocab_size")
    tree: dict[str, Any] = {name: getattr(flow, name) for name in names}
    if isinstance(flow, FlowConfig):
        return tree | {
            "encoder": dataclasses.asdict(flow.encoder),
            "decoder": {**rate, **steps, "estimator": estimator},
        }
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
    return tree | {"decoder": {"cfm_params": {"content": rate}, **steps, "estimator": estimator}}


def hift_arguments(hift: HiFTConfig) -> dict[str, Any]:
    """Return the arguments of the vocoder's constructor."""
    tree = dataclasses.asdict(hift)
    tree["istft_params"] = {"n_fft": tree.pop("istft_n_fft"), "hop_len": tree.pop("istft_hop")}
    cond_channels = tree.pop("f0_cond_channels")
    tree["f0_predictor"] = {"num_class": 1, "in_channels": hift.in_channels, "cond_channels": cond_channels}
    return tree


def random_flow_state(config: AnyFlowConfig, seed: int) -> dict[str, Tensor]:
    """Return a state dict of the flow; its mel lies around a speech-like spectrum."""
    state = _draw(build_flow(config), seed)
    envelope = np.linspace(*_MEL_LEVELS, config.output_size, dtype=np.float32)
    (last,) = _VELOCITY_BIASES & state.keys()
    state[last] = torch.from_numpy(envelope)
    return state


def random_hift_state(config: HiFTConfig, seed: int) -> dict[str, Tensor]:
    """Return a state dict of the vocoder; its pitch lies around 150 Hz and its audio stays inside the limits."""
    state = _draw(build_vocoder(config), seed)
    for name in [key for key in state if "resblocks" in key and key.endswith("original0")]:
        state[name] *= _RESIDUAL_GAIN
    for stage, rate in enumerate(() if config.is_causal else config.upsample_rates):
        # A transposed convolution halves the channels and spreads each input over `rate` outputs.
        state[f"ups.{stage}.parametrizations.weight.original0"] *= (rate / 2) ** 0.5
    for name in [key for key in state if key.startswith("source_downs") and key.endswith("weight")]:
        state[name] *= _SOURCE_GAIN
    before = state["conv_pre.parametrizations.weight.original1"]
    before -= before.mean(dim=(1, 2), keepdim=True)  # log-mel lies around -6: without this that would be all one hears
    bins = config.istft_n_fft // 2 + 1
    state["conv_post.parametrizations.weight.original0"][:bins] *= _MAGNITUDE_GAIN
    state["conv_post.parametrizations.weight.original0"][bins:] *= _PHASE_GAIN
    state["conv_post.bias"][:bins] += torch.linspace(*_LOG_MAGNITUDES, bins)
    state["conv_post.bias"][0] = _LOG_MAGNITUDE_OF_DC
    state["f0_predictor.classifier.weight"] *= _PITCH_SPREAD_HZ
    state["f0_predictor.classifier.bias"].fill_(_PITCH_HZ)
    return state


def _draw(module: nn.Module, seed: int) -> dict[str, Tensor]:
    constants = {name for name, _ in module.named_buffers()}
    return {
        name: value.clone() if name in constants else _random_parameter(name, value, seed)
        for name, value in module.state_dict().items()
    }


def _random_parameter(name: str, like: Tensor, seed: int) -> Tensor:
    normal = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(tuple(like.shape))
    if _is_gain(name, like):
        drawn = 1 + _SMALL * normal.clip(-3, 3)
    elif name.endswith(("bias", "pos_bias_u", "pos_bias_v")):
        drawn = _SMALL * normal
    elif name.endswith("original1"):
        drawn = normal
    else:
        drawn = normal / (like.numel() / like.shape[0]) ** 0.5
    return torch.from_numpy(drawn.astype(np.float32))


def _is_gain(name: str, like: Tensor) -> bool:
    """Norm weights, snake's alpha and the g of a weight norm."""
    return name.endswith(("original0", "alpha")) or (name.endswith("weight") and like.ndim == 1)
