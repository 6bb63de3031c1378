"""`cosydit export`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from cosydit.cli import export as command


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["export", *arguments]))


@pytest.mark.slow
def test_a_second_run_writes_nothing_and_the_report_has_its_environment(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(tiny_checkpoint), "--out", str(tmp_path / "out"), "--only", "f0_predictor", "campplus")
    assert run_command(*arguments) == 0
    assert "2 files written, 0 were there" in capsys.readouterr().out
    assert run_command(*arguments, "--report", str(tmp_path / "report.json")) == 0
    printed = capsys.readouterr().out
    assert "0 files written, 2 were there" in printed
    assert "| f0_predictor | float32 | onnxruntime |" in printed
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert {row["executor"] for row in report["figures"]} == {"pytorch", "onnxruntime"}
    assert report["environment"]["packages"]["onnxscript"]


def test_a_checkpoint_inside_a_folder_is_found(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "token2wav").symlink_to(tiny_checkpoint)
    assert run_command(str(tmp_path / "checkpoint"), "--out", str(tmp_path / "out"), "--only", "campplus") == 0
    assert (tmp_path / "out" / "campplus.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--only", "decoder"], "expected some of estimator_chunk", id="unknown graph"),
        pytest.param(["--shapes", "nowhere.yaml"], "nowhere.yaml can't be read", id="no shapes file"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run_command(str(tiny_checkpoint), "--out", str(tmp_path), *arguments) == 1
    assert complaint in capsys.readouterr().err


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path), "--out", str(tmp_path / "out")) == 1
    assert "flow.yaml" in capsys.readouterr().err
