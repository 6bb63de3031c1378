"""Faults planted in a real checkpoint and engine: the check that is made for each finds it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosydit.certify import token2wav
from cosydit.certify.check import Result
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from tests.cosydit.certify.plans import outcome_of
from tests.workers import random_checkpoint
from token2wav_service import build

WEIGHT_FACTOR = 1.5


def test_a_changed_byte_of_a_weight_file_is_found(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.copytree(random_checkpoint(tmp_path_factory), tmp_path / "checkpoint")
    assert outcome_of("checkpoint/sums", tmp_path, checkpoint=tmp_path / "checkpoint").result is Result.PASS
    path = tmp_path / "checkpoint" / "token2wav" / "hift.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    found = outcome_of("checkpoint/sums", tmp_path, checkpoint=tmp_path / "checkpoint")
    assert found.result is Result.FAIL and "hift.pt has SHA-256" in found.reason


@pytest.mark.slow
def test_a_wrong_matrix_of_the_served_engine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    load: Callable[[Path], Any] = build.load_models  # type: ignore[attr-defined]

    def first_one_spoiled(model_dir: Path) -> Any:
        models = load(model_dir)
        if not loaded:
            largest = max(models.flow.decoder.parameters(), key=lambda parameter: int(parameter.numel()))
            largest.data *= WEIGHT_FACTOR
        loaded.append(model_dir)
        return models

    monkeypatch.setattr(build, "load_models", first_one_spoiled)
    monkeypatch.setattr(token2wav, "SPOKEN_TOKENS", 25)
    monkeypatch.setattr(token2wav, "PROMPT_SECONDS", (1.0,))
    found = outcome_of("token2wav/reference", tmp_path, checkpoint=resolve_checkpoint(None, tmp_path).llm_dir.parent)
    assert len(loaded) == 2, found.reason
    assert found.result is Result.FAIL and "log-mel distance" in found.reason
