"""The trained speech tokenizer as the official ONNX interface, and the tokens of the whole corpus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor

from demo_voice.train.data import SpeechStreams
from demo_voice.train.onnx_graph import OnnxGraph, float_input, int32_input
from demo_voice.train.tokenizer.model import CODE_SIZE, INSIDE, LEVELS, SpeechTokenizerNet, token_ids
from token2wav_service.features.mel import S3_MEL_BINS

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
