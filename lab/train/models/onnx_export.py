"""The trained tokenizer and speaker encoder as the official ONNX files, and the tokens of the whole corpus.

Files are written layer by layer, with weights in int8 where that is allowed. An int8 weight has a scale for each output
channel and passes a DequantizeLinear node, which ONNX Runtime computes once, when it loads the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from lab.train.data import SpeechStreams
from lab.train.models.speaker import SPREAD_FLOOR, ConvUnit, ResidualBlock, SpeakerNet
from lab.train.models.tokenizer import CODE_SIZE, INSIDE, LEVELS, SpeechTokenizerNet, token_ids
from lab.train.packing import quantised
from token2wav_service.features.mel import FBANK_MEL_BINS, S3_MEL_BINS
from token2wav_service.features.prompt_models import EMBEDDING_SIZE

OPSET, IR_VERSION = 13, 8
"""ONNX versions, old enough for every ONNX Runtime from 1.18 on."""

_Array = npt.NDArray[np.generic]


class OnnxGraph:
    """Collects nodes and weights; every method returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, _Array] = {}

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add one operator with one result."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: _Array) -> str:
        """Add a weight that stays as it is."""
        name = f"weight_{len(self._weights)}"
        self._weights[name] = value
        return name

    def matrix(self, value: npt.NDArray[np.float32]) -> str:
        """Add a weight in int8, with a scale for each row of its first axis."""
        rows, scales = quantised(value)
        zeros = np.zeros(len(scales), np.int8)
        names = [self.constant(rows), self.constant(scales.astype(np.float32)), self.constant(zeros)]
        return self.node("DequantizeLinear", names, axis=0)

    def conv(self, x: str, unit: ConvUnit) -> str:
        """Add a convolution with its batch norm folded in."""
        weight, bias = (value.detach().float().cpu().numpy() for value in unit.folded())
        return self.node(
            "Conv",
            [x, self.matrix(weight), self.constant(bias)],
            kernel_shape=[weight.shape[2]],
            strides=[unit.stride],
            dilations=[unit.dilation],
            pads=[unit.padding, unit.padding],
        )

    def residual(self, x: str, block: ResidualBlock) -> str:
        """Add a residual block."""
        inner = self.node("Relu", [self.conv(x, block.wide)])
        return self.node("Relu", [self.node("Add", [x, self.conv(inner, block.point)])])

    def save(
        self, path: Path, inputs: Sequence[onnx.ValueInfoProto], output: str, kind: int, shape: Sequence[str | int]
    ) -> None:
        """Check the graph and write it; `output` becomes the file's only output, under its own name."""
        outputs = [helper.make_tensor_value_info(output, kind, list(shape))]
        weights = [numpy_helper.from_array(value, name) for name, value in self._weights.items()]
        graph = helper.make_graph(self._nodes, path.stem, list(inputs), outputs, weights)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="cosydit", ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))


def float_input(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """Describe a float32 input."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def int32_input(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """Describe an int32 input."""
    return helper.make_tensor_value_info(name, TensorProto.INT32, list(shape))


_BATCH = 256


def export_tokenizer(net: SpeechTokenizerNet, path: Path) -> None:
    """Write the net: log-mel [1, 128, T] float32 and its length [1] int32 to ids [1, ceil(T / 4)] int32.

    Frames past the length count as zero.
    """
    net = net.cpu().eval()
    graph = OnnxGraph()
    x = graph.node("Relu", [graph.conv(_masked(graph), net.stem)])
    for block in net.blocks_at_50_hz:
        x = graph.residual(x, block)  # type: ignore[arg-type]
    x = graph.node("Relu", [graph.conv(x, net.down)])
    for block in net.blocks_at_25_hz:
        x = graph.residual(x, block)  # type: ignore[arg-type]
    ids = _ids(graph, graph.conv(x, net.project))
    inputs = [float_input("feats", [1, S3_MEL_BINS, "T"]), int32_input("feats_length", [1])]
    graph.save(path, inputs, ids, TensorProto.INT32, [1, "tokens"])


@torch.no_grad()
def tokenize_streams(net: SpeechTokenizerNet, streams: SpeechStreams) -> Tensor:
    """Return the token [tokens] int64 of every row, each utterance by itself, as a prompt is tokenized."""
    net = net.to(streams.device).eval()
    ids = torch.empty(streams.tokens, dtype=torch.int64, device=streams.device)
    for starts in _alike(streams):
        size = starts.tokens
        log_mel = streams.window("log_mel", starts.rows, size).float().transpose(1, 2)
        index = starts.rows.to(streams.device)[:, None] + torch.arange(size, device=streams.device)
        ids[index] = token_ids(net(log_mel)).to(ids.dtype)
    return ids


@dataclass(frozen=True)
class _Alike:
    """Utterances of one length: a batch without padding."""

    tokens: int
    rows: Tensor
    """[B] their first rows."""


def _alike(streams: SpeechStreams) -> Iterator[_Alike]:
    by_size: defaultdict[int, list[int]] = defaultdict(list)
    for utterance in streams.utterances:
        by_size[utterance.tokens].append(utterance.start)
    for size, starts in sorted(by_size.items()):
        for first in range(0, len(starts), _BATCH):
            yield _Alike(size, torch.tensor(starts[first : first + _BATCH]))


def _masked(graph: OnnxGraph) -> str:
    axis = graph.constant(np.array(2, np.int64))
    frames = graph.node("Gather", [graph.node("Shape", ["feats"]), axis], axis=0)
    ends = graph.node("Cast", [frames], to=TensorProto.INT32)
    zero, one = graph.constant(np.array(0, np.int32)), graph.constant(np.array(1, np.int32))
    valid = graph.node("Less", [graph.node("Range", [zero, ends, one]), "feats_length"])
    return graph.node("Where", [valid, "feats", graph.constant(np.array(0, np.float32))])


def _ids(graph: OnnxGraph, projected: str) -> str:
    inside = graph.constant(np.array(INSIDE, np.float32))
    bounded = graph.node("Mul", [graph.node("Tanh", [projected]), inside])
    digits = graph.node("Add", [graph.node("Round", [bounded]), graph.constant(np.array(1, np.float32))])
    places = graph.constant((LEVELS ** np.arange(CODE_SIZE, dtype=np.float32)).reshape(1, -1, 1))
    axis = graph.constant(np.array([1], np.int64))
    numbers = graph.node("ReduceSum", [graph.node("Mul", [digits, places]), axis], keepdims=0)
    return graph.node("Cast", [numbers], to=TensorProto.INT32)


def export_speaker_encoder(net: SpeakerNet, path: Path) -> None:
    """Write the net: `input` [B, T, 80] float32 to [B, 192] float32."""
    net = net.cpu().eval()
    graph = OnnxGraph()
    x = graph.node("Transpose", ["input"], perm=[0, 2, 1])
    x = graph.node("Relu", [graph.conv(x, net.stem)])
    for block in net.blocks:
        x = graph.residual(x, block)  # type: ignore[arg-type]
    mean = graph.node("ReduceMean", [x], axes=[2], keepdims=0)
    power = graph.node("ReduceMean", [graph.node("Mul", [x, x])], axes=[2], keepdims=0)
    variance = graph.node("Sub", [power, graph.node("Mul", [mean, mean])])
    spread = graph.node("Sqrt", [graph.node("Add", [variance, graph.constant(np.array(SPREAD_FLOOR, np.float32))])])
    joined = graph.node("Concat", [mean, spread], axis=1)
    weight, bias = (value.detach().float().cpu().numpy() for value in (net.embed.weight, net.embed.bias))
    embedding = graph.node("Gemm", [joined, graph.matrix(weight), graph.constant(bias)], transB=1)
    graph.save(
        path, [float_input("input", ["B", "T", FBANK_MEL_BINS])], embedding, TensorProto.FLOAT, ["B", EMBEDDING_SIZE]
    )
