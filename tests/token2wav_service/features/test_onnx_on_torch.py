"""The prompt models in torch answer as in ONNX Runtime; where they can't, ONNX Runtime runs them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.unpack import BUNDLE
from token2wav_service.checkpoint.make_random import make_speaker_encoder, make_speech_tokenizer
from token2wav_service.features import onnx_on_torch
from token2wav_service.features.onnx_on_torch import TorchGraph, UnknownOperatorError
from token2wav_service.features.prompt_models import (
    SPEAKER_ENCODER_FILE,
    SPEECH_TOKENIZER_FILE,
    SpeakerEncoder,
    open_session,
)

LENGTHS = (37, 120, 233)
"""Frames; the second is a whole number of the speaker encoder's segments."""


class SmallSpeakerEncoder(nn.Module):
    """The kinds of layers that CAM++ has, one or two of each: a head over frequencies, dense layers with a mask."""

    SEGMENT = 40

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, (2, 1), 1), nn.Conv2d(4, 4, 1)])
        self.head_norm = nn.BatchNorm2d(4)
        self.down = nn.Conv1d(4 * 40, 16, 5, 2, 2)
        self.dense = nn.ModuleList(nn.Conv1d(16 + 8 * layer, 8, 3, padding=2, dilation=2) for layer in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16 + 8 * layer) for layer in range(2))
        self.masks = nn.ModuleList(nn.Conv1d(16 + 8 * layer, 8, 1) for layer in range(2))
        self.embed = nn.Linear(64, 192)

    def forward(self, energies: Tensor) -> Tensor:
        x = energies.transpose(1, 2).unsqueeze(1)
        for conv in self.head:
            x = torch.relu(conv(x))
        x = self.head_norm(x).reshape(x.shape[0], -1, x.shape[3])
        x = self.down(x)
        for conv, norm, mask in zip(self.dense, self.norms, self.masks, strict=True):
            inner = torch.relu(norm(x))
            means = functional.avg_pool1d(inner, self.SEGMENT, self.SEGMENT, ceil_mode=True)
            wide = means.unsqueeze(-1).expand(*means.shape, self.SEGMENT).reshape(*means.shape[:2], -1)
            context = inner.mean(-1, keepdim=True) + wide[..., : inner.shape[-1]]
            x = torch.cat([x, conv(inner) * torch.sigmoid(mask(context))], 1)
        return self.embed(torch.cat([x.mean(-1), x.std(-1)], 1))


class SmallSpeechTokenizer(nn.Module):
    """The kinds of layers that the S3 tokenizer has: strided convolutions, attention with memory, a quantiser."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(128, 32, 3, 2, 1), nn.Conv1d(32, 32, 3, 2, 1)])
        self.norm = nn.LayerNorm(32)
        self.project = nn.ModuleList(nn.Linear(32, 32, bias=has_bias) for has_bias in (True, False, True))
        self.memory = nn.Conv1d(32, 32, 7, groups=32, bias=False)
        self.code = nn.Linear(32, 8)
        angles = torch.outer(torch.arange(200.0), 1e-4 ** torch.linspace(0, 1, 8)).repeat(1, 2)
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def forward(self, log_mel: Tensor, length: Tensor) -> Tensor:
        valid = torch.arange(log_mel.shape[2]) < length[:, None]
        x = log_mel * valid[:, None].float()
        for conv in self.convs:
            x = functional.gelu(conv(x))
        x = x.transpose(1, 2)
        normed = self.norm(x)
        query, key, value = (linear(normed).view(*x.shape[:2], 2, 16).transpose(1, 2) for linear in self.project)
        query, key = (self._turned(one) for one in (query, key))
        seen = torch.softmax(query @ key.transpose(2, 3) * 16**-0.5, -1) @ value
        values = value.transpose(1, 2).flatten(2)
        memory = self.memory(functional.pad(values.transpose(1, 2), (3, 3))).transpose(1, 2)
        digits = torch.round(torch.tanh(self.code(x + seen.transpose(1, 2).flatten(2) + memory) * 8) * 0.999) + 1
        return (digits * 3.0 ** torch.arange(8)).sum(-1).to(torch.int32)

    def _turned(self, x: Tensor) -> Tensor:
        left, right = x[..., :8], x[..., 8:]
        frames = x.shape[2]
        return x * self.cos[:frames] + torch.cat([-right, left], -1) * self.sin[:frames]


def exported(net: nn.Module, path: Path, inputs: tuple[Tensor, ...], time_axis: int) -> Path:
    """Write a net with random weights and statistics as the official files were written."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    names = ["x", "length"][: len(inputs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.eval(), inputs, path, input_names=names, dynamic_axes={"x": {time_axis: "T"}}, opset_version=14,
            dynamo=False,
        )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("graphs")
    paths = {name: directory / f"{name}.onnx" for name in ("stand-in encoder", "stand-in tokenizer")}
    make_speaker_encoder(paths["stand-in encoder"], seed=0)
    make_speech_tokenizer(paths["stand-in tokenizer"], seed=0)
    torch.manual_seed(0)
    encoder, tokenizer = directory / "encoder.onnx", directory / "tokenizer.onnx"
    log_mel = (torch.randn(1, 128, 100), torch.tensor([100], dtype=torch.int32))
    return {
        **paths,
        "bundled encoder": BUNDLE / SPEAKER_ENCODER_FILE,
        "bundled tokenizer": BUNDLE / SPEECH_TOKENIZER_FILE,
        "official layers, encoder": exported(SmallSpeakerEncoder(), encoder, (torch.randn(1, 100, 80),), 1),
        "official layers, tokenizer": exported(SmallSpeechTokenizer(), tokenizer, log_mel, 2),
    }


@pytest.mark.parametrize("kind", ["stand-in", "bundled", "official layers,"])
@pytest.mark.parametrize("model", ["encoder", "tokenizer"])
def test_a_graph_in_torch_answers_as_in_onnx_runtime_at_any_length(
    graphs: dict[str, Path], kind: str, model: str
) -> None:
    path, rng = graphs[f"{kind} {model}"], np.random.default_rng(1)
    graph, session = TorchGraph(path, "cpu"), open_session(path, threads=1)
    for length in LENGTHS:
        inputs: list[Any] = [rng.standard_normal((1, length, 80), np.float32)]
        if model == "tokenizer":
            inputs = [rng.standard_normal((1, 128, length), np.float32), np.array([length], np.int32)]
        (expected,) = session.run(None, dict(zip(graph.inputs, inputs, strict=True)))

        got = graph.run(*inputs)

        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_an_operator_that_is_not_known_is_named(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Hardmax", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), tmp_path / "odd.onnx")

    with pytest.raises(UnknownOperatorError, match=r"odd\.onnx has the operator Hardmax"):
        TorchGraph(tmp_path / "odd.onnx", "cpu")


class WrongGraph:
    def __init__(self, path: Path, device: str) -> None:
        pass

    def run(self, fbank: Any) -> Any:
        return np.zeros((1, 192), np.float32)


@pytest.mark.parametrize(
    ("graph", "why"), [(WrongGraph, "not those of ONNX Runtime"), (TorchGraph, r"\(\w+Error: .+\)")]
)
def test_a_model_that_a_gpu_cant_run_rightly_runs_on_the_cpu_and_the_log_says_why(
    graphs: dict[str, Path], graph: Any, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, fbank = graphs["bundled encoder"], np.ones((50, 80), np.float32)
    monkeypatch.setattr(onnx_on_torch, "TorchGraph", graph)

    encoder = SpeakerEncoder(path, device="cuda" if graph is WrongGraph else "nowhere")

    np.testing.assert_array_equal(encoder.embed_fbank(fbank), SpeakerEncoder(path).embed_fbank(fbank))
    (message,) = caplog.messages
    assert "it runs on the CPU" in message and re.search(why, message)
