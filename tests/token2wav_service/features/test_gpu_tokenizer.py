"""When the s3tokenizer package is used, and how: against a fake package with its calling convention."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from token2wav_service.checkpoint.make_onnx import make_speech_tokenizer
from token2wav_service.features.prompt_models import (
    GpuSpeechTokenizer,
    OnnxSpeechTokenizer,
    open_speech_tokenizer,
)

FAKE_PACKAGE = """
import torch

def load_model(name):
    if "official" not in name:
        raise AssertionError("not the official graph")
    return Model()

def padding(mels):
    lengths = torch.tensor([mel.shape[1] for mel in mels], dtype=torch.int32)
    return torch.nn.utils.rnn.pad_sequence([mel.t() for mel in mels], batch_first=True).transpose(1, 2), lengths

class Model(torch.nn.Module):
    def quantize(self, mels, lengths):
        counts = (lengths + 3) // 4
        assert mels.shape[1] == 128
        return torch.arange(int(counts.max()) + 2)[None], counts
"""


@pytest.fixture(autouse=True)
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "s3tokenizer.py").write_text(FAKE_PACKAGE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    sys.modules.pop("s3tokenizer", None)


def test_gpu_tokenizer_returns_the_valid_ids(tmp_path: Path) -> None:
    tokenizer = GpuSpeechTokenizer(tmp_path / "official.onnx", "cpu")

    ids = tokenizer.tokenize(np.zeros((128, 30), np.float32))

    assert ids.dtype == np.int64
    assert ids.tolist() == list(range(8))


def test_cpu_never_imports_the_package(tmp_path: Path) -> None:
    make_speech_tokenizer(tmp_path / "official.onnx", seed=0)

    tokenizer = open_speech_tokenizer(tmp_path / "official.onnx", "cpu")

    assert isinstance(tokenizer, OnnxSpeechTokenizer)
    assert "s3tokenizer" not in sys.modules


def test_gpu_falls_back_to_onnx_runtime_for_a_graph_the_package_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_speech_tokenizer(tmp_path / "small.onnx", seed=0)

    tokenizer = open_speech_tokenizer(tmp_path / "small.onnx", "cuda:0")

    assert isinstance(tokenizer, OnnxSpeechTokenizer)
    assert "using ONNX Runtime on the CPU" in caplog.text


@pytest.mark.parametrize(
    "broken", ["raise ImportError('torchaudio')", "raise OSError('libtorch.so: undefined symbol')"]
)
def test_gpu_falls_back_to_onnx_runtime_where_the_packages_libraries_do_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    make_speech_tokenizer(tmp_path / "official.onnx", seed=0)
    (tmp_path / "packages" / "s3tokenizer.py").write_text(f"{broken}\n", "utf-8")

    assert isinstance(open_speech_tokenizer(tmp_path / "official.onnx", "cuda:0"), OnnxSpeechTokenizer)
    assert "using ONNX Runtime on the CPU" in caplog.text


def test_the_log_says_which_tokenizer_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_speech_tokenizer(tmp_path / "small.onnx", seed=0)
    with caplog.at_level(logging.INFO):
        open_speech_tokenizer(tmp_path / "small.onnx", "cpu")
    assert "speech tokenizer: ONNX Runtime on the CPU" in caplog.text
