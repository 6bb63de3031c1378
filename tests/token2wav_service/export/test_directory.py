"""A directory of exports, and `cosydit export`: what is done is not done again, what changed is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from cosydit.cli.main import main
from servicekit.file_sums import sha256_of_file
from token2wav_service import graphs
from token2wav_service.checkpoint import loader
from token2wav_service.errors import CheckpointError
from token2wav_service.export.directory import ExportDirectory, ExportOptions
from token2wav_service.graphs import ESTIMATOR_CHUNK, VOCODER, AxisRange

FILE = f"{VOCODER}.float32.onnx"


@pytest.fixture
def copied(exported: ExportDirectory, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint and its exported graphs, to be changed."""
    out = shutil.copytree(exported.out_dir, tmp_path / "out")
    return shutil.copytree(exported.model_dir, tmp_path / "checkpoint"), out


def undone(checkpoint: Path, out: Path) -> set[str]:
    tasks = ExportDirectory(checkpoint, out, ExportOptions()).plan()
    return {task.spec.name for task in tasks if not task.is_done}


@pytest.mark.slow
def test_what_is_there_is_not_made_again_and_what_changed_is(
    copied: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, out = copied
    assert undone(checkpoint, out) == set()
    with monkeypatch.context() as smaller:
        smaller.setattr(graphs, "STREAMS", AxisRange(1, 2, 4))
        assert undone(checkpoint, out) == {ESTIMATOR_CHUNK, VOCODER}
    weights = checkpoint / loader.HIFT_WEIGHTS
    weights.write_bytes(weights.read_bytes() + b"\0")
    assert undone(checkpoint, out) == {VOCODER}
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"hift\.pt is missing; .* with --only"):
        undone(checkpoint, out)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut short", "gone", "no manifest", "manifest unreadable"])
def test_a_file_that_is_not_whole_is_made_again(copied: tuple[Path, Path], damage: str) -> None:
    checkpoint, out = copied
    file, manifest = out / FILE, out / f"{FILE}.json"
    {
        "cut short": lambda: file.write_bytes(file.read_bytes()[:-1]),
        "gone": file.unlink,
        "no manifest": manifest.unlink,
        "manifest unreadable": lambda: manifest.write_text("[]"),
    }[damage]()
    assert undone(checkpoint, out) == {VOCODER}


@pytest.mark.slow
def test_the_manifest_says_what_the_file_is_and_what_it_was_made_from(exported: ExportDirectory) -> None:
    file = exported.out_dir / FILE
    manifest = json.loads((exported.out_dir / f"{FILE}.json").read_text("utf-8"))
    assert (manifest["sha256"], manifest["size_bytes"]) == (sha256_of_file(file), file.stat().st_size)
    assert manifest["opset"] == onnx.load(str(file)).opset_import[0].version
    assert manifest["sources"]["hift.pt"] == sha256_of_file(exported.model_dir / loader.HIFT_WEIGHTS)
    assert manifest["description"]["inputs"][0]["dims"] == ["streams", 80, "mel_frames"]


def run_command(*arguments: str) -> int:
    return main(["export", *arguments])


@pytest.mark.slow
def test_the_command_compares_what_is_there_and_writes_nothing_twice(
    copied: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = copied
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "token2wav").symlink_to(checkpoint)
    arguments = (str(tmp_path / "whole"), "--out", str(out), "--check")
    assert run_command(*arguments) == 0
    printed = capsys.readouterr().out
    assert "0 files written, 2 were there already" in printed
    assert f"{FILE}, 4 cases: " in printed and "2 comparisons, 0 out of tolerance" in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--only", "encoder_chunk"], "expected some of estimator_chunk vocoder", id="unknown graph"),
        pytest.param([], "flow.yaml", id="no checkpoint"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run_command(str(tmp_path), "--out", str(tmp_path / "out"), *arguments) == 1
    assert complaint in capsys.readouterr().err
