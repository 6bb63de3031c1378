"""Hugging Face datasets as lists of texts, from local files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cosydit.bench.inputs import read_dataset
from cosydit.bench.types import BadRow, BenchmarkError, SpeechInput

WAV = b"RIFF of a voice"


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    module = pytest.importorskip("datasets", reason="needs the extra `datasets`")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "a.wav").write_bytes(WAV)
    return module


def _rows() -> list[dict[str, str]]:
    first = {"id": "u1", "target_text": "hello", "prompt_text": "says", "prompt_audio": "a.wav"}
    return [first, {**first, "id": "u2", "prompt_audio": "gone.wav"}]


@pytest.mark.filterwarnings("ignore")
def test_a_local_jsonl_file_is_a_dataset_whose_prompts_lie_beside_it(tmp_path: Path, datasets: Any) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, _rows())), encoding="utf-8")
    good, bad = read_dataset(str(path), "test")
    assert good == SpeechInput("u1", "hello", "says", tmp_path / "a.wav")
    assert isinstance(bad, BadRow) and "gone.wav does not exist" in bad.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_splits", [pytest.param(False, id="one split"), pytest.param(True, id="splits")])
def test_a_saved_dataset_carries_its_prompts(tmp_path: Path, datasets: Any, has_splits: bool) -> None:
    audio = datasets.Features({name: datasets.Value("string") for name in ("id", "target_text", "prompt_text")})
    audio["prompt_audio"] = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    rows = [{**_rows()[0], "prompt_audio": {"bytes": WAV, "path": None}}]
    saved = datasets.Dataset.from_list(rows, features=audio)
    (datasets.DatasetDict({"test": saved}) if has_splits else saved).save_to_disk(tmp_path / "saved")
    assert read_dataset(str(tmp_path / "saved"), "test") == [SpeechInput("u1", "hello", "says", WAV)]


def test_a_dataset_that_is_not_there_says_so(tmp_path: Path, datasets: Any) -> None:
    with pytest.raises(BenchmarkError, match="can't be loaded"):
        read_dataset(str(tmp_path / "nothing"), "test")
