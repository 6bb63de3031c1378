"""The models against golden vectors of the original's modules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests import ASSETS
from token2wav_service.errors import CheckpointError
from token2wav_service.replay.report import format_rows
from token2wav_service.replay.run import replay_directory

GOLDEN = ASSETS / "golden"


def test_every_golden_output_is_within_its_tolerance() -> None:
    report = replay_directory(GOLDEN)
    failed = [row for row in report.rows if not row.passed]
    assert not failed, "\n" + format_rows(failed)
    assert {row.output.split("/")[0] for row in report.rows} == {path.name for path in GOLDEN.iterdir()}


def test_a_changed_weight_fails_the_replay(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "a_dit", tmp_path / "a_dit")
    weights = tmp_path / "a_dit" / "weights.safetensors"
    tensors = load_file(weights)
    tensors["blocks.0.conv.block.1.weight"] = tensors["blocks.0.conv.block.1.weight"] * 1.01
    save_file(tensors, weights)
    assert not replay_directory(tmp_path).passed


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "a_dit", tmp_path / "a_dit")
    (tmp_path / "a_dit" / "weights.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.safetensors is missing"):
        replay_directory(tmp_path)


def test_a_directory_without_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no golden folder"):
        replay_directory(tmp_path)
