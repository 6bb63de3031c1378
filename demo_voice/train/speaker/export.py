"""The trained speaker encoder as CAM++'s ONNX interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from demo_voice.train.onnx_graph import OnnxGraph, float_input
from demo_voice.train.speaker.model import SPREAD_FLOOR, SpeakerNet
from token2wav_service.features.mel import FBANK_MEL_BINS
from token2wav_service.features.speaker_encoder import EMBEDDING_SIZE


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
