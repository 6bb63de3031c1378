"""Seeded random weights for the flow and the vocoder, scaled so that they speak audible, unclipped noise.

Every parameter is drawn, those that training starts at zero too, so that nothing passes a test by being absent.
Draws depend on the seed and the parameter's name only.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor, nn

from token2wav_service.checkpoint.loader import build_flow, build_vocoder
from token2wav_service.models.config import AnyFlowConfig, HiFTConfig

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
