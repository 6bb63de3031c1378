"""The table over several servers' benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.combine import combine, main


def write_results(directory: Path, failures: int, throughput: float, ttfa_s: float | None) -> Path:
    directory.mkdir()
    times = None if ttfa_s is None else {"p50": ttfa_s, "p99": 2 * ttfa_s}
    summary = {"requests": 4, "failures": failures, "audio_s_per_s": throughput, "ttfa_s": times, "total_s": times}
    (directory / "results.json").write_text(json.dumps({"summary": summary}))
    return directory


def test_each_run_is_a_row_and_the_last_adds_up(tmp_path: Path) -> None:
    runs = [write_results(tmp_path / "a", 0, 2.0, 0.25), write_results(tmp_path / "b", 1, 3.5, None)]
    rows = [line.split() for line in combine(runs).splitlines()]
    assert rows[1] == ["a", "4", "0", "250.0", "500.0", "250.0", "2.000"]
    assert rows[2] == ["b", "4", "1", "-", "-", "-", "3.500"]
    assert rows[3] == ["all", "8", "1", "5.500"]


def test_a_folder_without_results_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "results.json" in capsys.readouterr().err
