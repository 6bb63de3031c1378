"""The models against golden vectors of the original's modules."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load, load_file, save_file

from cosydit.cli.main import main
from tests import ASSETS
from token2wav_service.errors import CheckpointError
from token2wav_service.replay.run import replay_directory

pytestmark = pytest.mark.slow

GOLDEN = ASSETS / "golden"
OUTPUTS = 99
"""Outputs that the vectors hold, in which none may be forgotten."""


def test_every_golden_output_is_within_its_tolerance() -> None:
    rows = replay_directory(GOLDEN)
    failed = [row for row in rows if not row.passed]
    assert not failed, "\n".join(map(str, failed))
    assert {row.output.split("/")[0] for row in rows} == {path.name for path in GOLDEN.iterdir()}
    assert len(rows) == OUTPUTS


def test_a_changed_weight_fails_the_replay(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "a_dit", tmp_path / "a_dit")
    weights = tmp_path / "a_dit" / "weights.safetensors"
    tensors = load_file(weights)
    tensors["blocks.0.conv.block.1.weight"] = tensors["blocks.0.conv.block.1.weight"] * 1.01
    save_file(tensors, weights)
    assert not all(row.passed for row in replay_directory(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "a_dit", tmp_path / "a_dit")
    (tmp_path / "a_dit" / "weights.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.safetensors is missing"):
        replay_directory(tmp_path)


def test_a_directory_without_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no golden folder"):
        replay_directory(tmp_path)


def test_a_setup_cache_of_two_solver_steps_is_enough(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "d_flow", tmp_path / "d_flow")
    file = tmp_path / "d_flow" / "setup_cache.safetensors"
    compressed = file.with_name(f"{file.name}.xz")
    tensors = load(lzma.decompress(compressed.read_bytes()))
    compressed.unlink()
    for name in ("cache.estimator_cnn_cache", "cache.estimator_att_cache"):
        if name in tensors:
            tensors[f"{name}_t0_tlast"] = tensors.pop(name)[[0, -1]].contiguous()
    save_file(tensors, file)

    rows = replay_directory(tmp_path)

    assert not (failed := [row for row in rows if not row.passed]), "\n".join(map(str, failed))
    assert any(row.output.endswith("estimator_cnn_cache_t0_tlast") for row in rows)
    tensors["cache.estimator_cnn_cache_t0_tlast"] += 1
    save_file(tensors, file)
    assert not all(row.passed for row in replay_directory(tmp_path))


def test_the_command_counts_what_each_folder_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "a_dit", tmp_path / "a_dit")
    assert main(["replay", str(tmp_path), "--failed-only"]) == 0
    rows = len(replay_directory(tmp_path))
    assert f"a_dit: {rows} of {rows} within tolerance" in capsys.readouterr().out.splitlines()
