"""Damaged and exchanged weights: every service refuses them at load, and says which file and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosydit.cli.main import main
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.errors import CheckpointError as LLMCheckpointError
from llm_service.gpu.weights import load_weights
from servicekit.file_sums import SUMS_FILE, FileSumsError, check_file
from tests.workers import random_checkpoint
from token2wav_service.checkpoint.family import open_features
from token2wav_service.checkpoint.loader import load_models
from token2wav_service.errors import CheckpointError

FLOW, LLM, HEAD = "token2wav/flow.pt", "llm/model.safetensors", "llm/speech_head.safetensors"


def load_flow(root: Path) -> None:
    load_models(root / "token2wav")


def load_llm(root: Path) -> None:
    SpeechLanguageModel.load(root / "llm", "cpu", "float32")


def load_llm_for_graphs(root: Path) -> None:
    load_weights(root / "llm", torch.device("cpu"), torch.float32)


def load_features(root: Path) -> None:
    open_features(root / "token2wav")


LOADERS = (
    (load_flow, FLOW),
    (load_flow, "token2wav/hift.pt"),
    (load_llm, LLM),
    (load_llm, HEAD),
    (load_llm_for_graphs, LLM),
    (load_llm_for_graphs, HEAD),
    (load_features, "token2wav/campplus.onnx"),
    (load_features, "token2wav/speech_tokenizer_v2_25hz.onnx"),
)
Loader = Callable[[Path], None]


@pytest.fixture
def checkpoint(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(random_checkpoint(tmp_path_factory), tmp_path / "checkpoint"))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def put_nan(path: Path) -> None:
    is_torch = path.suffix == ".pt"
    state = torch.load(path, weights_only=True) if is_torch else load_file(path)
    name = next(name for name in state if not name.startswith("lm_head"))  # with a head file it is not read
    state[name].view(-1)[0] = float("nan")
    torch.save(state, path) if is_torch else save_file(state, path, metadata={"format": "pt"})


@pytest.mark.parametrize(("load", "name"), LOADERS)
def test_a_flipped_bit_is_refused(checkpoint: Path, load: Loader, name: str) -> None:
    flip_a_bit(checkpoint / name)
    with pytest.raises((CheckpointError, LLMCheckpointError), match=rf"{Path(name).name} has SHA-256 .* expected"):
        load(checkpoint)


@pytest.mark.parametrize(("load", "name"), [pair for pair in LOADERS if not pair[1].endswith(".onnx")])
def test_nan_is_refused_where_nothing_is_listed(checkpoint: Path, load: Loader, name: str) -> None:
    (checkpoint / SUMS_FILE).unlink()
    put_nan(checkpoint / name)
    with pytest.raises((CheckpointError, LLMCheckpointError), match="1 weights hold NaN or infinity"):
        load(checkpoint)


@pytest.mark.parametrize(("load", "name"), LOADERS)
def test_a_truncated_file_is_refused_where_nothing_is_listed(checkpoint: Path, load: Loader, name: str) -> None:
    (checkpoint / SUMS_FILE).unlink()
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises((CheckpointError, LLMCheckpointError), match=r"download or make it again|can't be read"):
        load(checkpoint)


def test_a_flipped_bit_of_a_pytorch_file_is_refused_where_nothing_is_listed(checkpoint: Path) -> None:
    (checkpoint / SUMS_FILE).unlink()
    flip_a_bit(checkpoint / FLOW)
    with pytest.raises(CheckpointError, match=r"flow\.pt is damaged"):
        load_flow(checkpoint)


def test_an_unlisted_file_among_listed_ones_is_refused_until_it_is_sealed(checkpoint: Path) -> None:
    shutil.copyfile(checkpoint / HEAD, checkpoint / "llm" / "extra.safetensors")
    with pytest.raises(FileSumsError, match="not listed"):
        check_file(checkpoint / "llm" / "extra.safetensors")
    assert main(["checkpoint", "seal", str(checkpoint)]) == 0
    check_file(checkpoint / "llm" / "extra.safetensors")


def test_a_damaged_list_is_refused(checkpoint: Path) -> None:
    (checkpoint / SUMS_FILE).write_bytes(b"\xff\x00 not a list\n")
    with pytest.raises(CheckpointError, match="line 1: expected a SHA-256"):
        load_flow(checkpoint)


@pytest.mark.slow
def test_verify_names_the_file(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_a_bit(checkpoint / LLM)
    assert main(["checkpoint", "verify", str(checkpoint)]) == 1
    assert "model.safetensors has SHA-256" in capsys.readouterr().out
