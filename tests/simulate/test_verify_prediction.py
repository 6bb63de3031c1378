"""A prediction against its measurement: the errors are those of the files, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import verify_prediction
from benchmarks.figures import read_runs

MEASURED = Path(verify_prediction.__file__).parent / "results/h200_end_to_end"


def predicted(path: Path, **runs: float) -> Path:
    figures = ("ttfa_p50_ms", "ttfa_p95_ms", "ttfa_p99_ms", "audio_s_per_s", "total_p50_ms")
    measured = read_runs(MEASURED)
    document = {}
    for name, value in runs.items():
        run = name.replace("_", "-")
        load = measured[run].load if run in measured else {}
        document[run] = {"load": load, **dict.fromkeys(figures, value)}
    path.write_text(json.dumps({"predictions": document}), encoding="utf-8")
    return path


def test_every_predicted_run_is_held_against_its_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prediction = predicted(tmp_path / "prediction.json", closed_001=70.0)
    out = tmp_path / "out.json"

    status = verify_prediction.main(["--prediction", str(prediction), "--measured", str(MEASURED), "--out", str(out)])

    (run,) = json.loads(out.read_text("utf-8"))["runs"]
    assert status == 0
    assert run["error"]["ttfa_p50_ms"] == pytest.approx(70.0 / run["measured"]["ttfa_p50_ms"] - 1)
    assert "within 15% in every run: ttfa_p50_ms" in capsys.readouterr().out


def test_a_run_that_was_not_measured_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prediction = predicted(tmp_path / "prediction.json", closed_777=1.0)
    options = ["--prediction", str(prediction), "--measured", str(MEASURED), "--out", str(tmp_path / "out.json")]

    assert verify_prediction.main(options) == 2
    assert "lacks ['closed-777']; measure them with benchmarks/gpu.sh prediction" in capsys.readouterr().err


def test_a_run_of_the_same_name_under_another_load_is_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = predicted(tmp_path / "prediction.json", closed_001=70.0)
    document = json.loads(path.read_text("utf-8"))
    document["predictions"]["closed-001"]["load"]["requests"] += 1
    path.write_text(json.dumps(document), encoding="utf-8")
    options = ["--prediction", str(path), "--measured", str(MEASURED), "--out", str(tmp_path / "out.json")]

    assert verify_prediction.main(options) == 2
    assert "other loads under the names ['closed-001']" in capsys.readouterr().err
