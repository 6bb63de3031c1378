"""Stand-ins for the two prompt models: the official ONNX interfaces at a small size, with seeded random weights.

Their answers depend on the audio, but mean nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

OPSET = 13
IR_VERSION = 8
"""ONNX version of the file, old enough for every ONNX Runtime from 1.18 on."""

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

_Array = npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.int32]


def make_speaker_encoder(path: Path, seed: int) -> None:
    """Write a CAM++ stand-in: input `input` [B, T, 80] float32, output `output` [B, 192] float32.

    Frames pass a tanh layer; mean and mean square over time pass a linear layer.
    """
    rng = np.random.default_rng([seed, 1])
    weights: dict[str, _Array] = {
        "frame_weight": _normal(rng, (_FBANK_BINS, _SPEAKER_HIDDEN), _FBANK_SCALE / _FBANK_BINS**0.5),
        "frame_bias": _normal(rng, (_SPEAKER_HIDDEN,), 0.1),
        "out_weight": _normal(rng, (2 * _SPEAKER_HIDDEN, _EMBEDDING_SIZE), 1.0),
        "out_bias": _normal(rng, (_EMBEDDING_SIZE,), 0.1),
    }
    nodes = [
        helper.make_node("MatMul", ["input", "frame_weight"], ["projected"]),
        helper.make_node("Add", ["projected", "frame_bias"], ["shifted"]),
        helper.make_node("Tanh", ["shifted"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "hidden"], ["squared"]),
        helper.make_node("ReduceMean", ["hidden"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("ReduceMean", ["squared"], ["power"], axes=[1], keepdims=0),
        helper.make_node("Concat", ["mean", "power"], ["statistics"], axis=1),
        helper.make_node("MatMul", ["statistics", "out_weight"], ["mixed"]),
        helper.make_node("Add", ["mixed", "out_bias"], ["output"]),
    ]
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["B", "T", _FBANK_BINS])]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["B", _EMBEDDING_SIZE])]
    _save(path, _model("campplus_standin", nodes, inputs, outputs, weights))


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
    weights: dict[str, _Array] = {
        "taps": taps.astype(np.float32),
        "place_values": (_LEVELS ** np.arange(_CODE_SIZE, dtype=np.float32)).reshape(1, -1, 1),
        "inside": np.array(0.999, np.float32),
        "one": np.array(1, np.float32),
        "zero": np.array(0, np.float32),
        "zero_frame": np.array(0, np.int32),
        "one_frame": np.array(1, np.int32),
        "time_axis": np.array(2, np.int64),
        "digit_axis": np.array([1], np.int64),
    }
    nodes = [*_masked_log_mel(), *_quantise()]
    inputs = [
        helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, _LOG_MEL_BINS, "T"]),
        helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1]),
    ]
    outputs = [helper.make_tensor_value_info("indices", TensorProto.INT32, [1, "tokens"])]
    _save(path, _model("speech_tokenizer_standin", nodes, inputs, outputs, weights))


def _masked_log_mel() -> list[NodeProto]:
    return [
        helper.make_node("Shape", ["feats"], ["shape"]),
        helper.make_node("Gather", ["shape", "time_axis"], ["frames_64"], axis=0),
        helper.make_node("Cast", ["frames_64"], ["frames"], to=TensorProto.INT32),
        helper.make_node("Range", ["zero_frame", "frames", "one_frame"], ["positions"]),
        helper.make_node("Less", ["positions", "feats_length"], ["valid"]),
        helper.make_node("Where", ["valid", "feats", "zero"], ["masked"]),
    ]


def _quantise() -> list[NodeProto]:
    step = [_FRAMES_PER_TOKEN]
    pads = [0, _FRAMES_PER_TOKEN - 1]
    return [
        helper.make_node("Conv", ["masked", "taps"], ["codes"], kernel_shape=step, strides=step, pads=pads),
        helper.make_node("Tanh", ["codes"], ["bounded"]),
        helper.make_node("Mul", ["bounded", "inside"], ["scaled"]),
        helper.make_node("Round", ["scaled"], ["rounded"]),
        helper.make_node("Add", ["rounded", "one"], ["digits"]),
        helper.make_node("Mul", ["digits", "place_values"], ["placed"]),
        helper.make_node("ReduceSum", ["placed", "digit_axis"], ["numbers"], keepdims=0),
        helper.make_node("Cast", ["numbers"], ["indices"], to=TensorProto.INT32),
    ]


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _model(
    name: str,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: dict[str, _Array],
) -> ModelProto:
    initializers = [numpy_helper.from_array(value, key) for key, value in weights.items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="cosydit")
    model.ir_version = IR_VERSION
    return model


def _save(path: Path, model: ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
