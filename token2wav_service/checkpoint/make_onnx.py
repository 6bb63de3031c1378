"""Stand-ins for the two prompt models: the official ONNX interfaces at a small size, with seeded random weights.

Their answers depend on the audio, but mean nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper, parser

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
    model = parser.parse_model(_HEAD + graph)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items())
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
