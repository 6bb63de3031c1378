"""A prediction against its measurement: the errors are the files', misses count, and what proves nothing is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.sweep import RUN_SUFFIX, read_run
from lab.simulate import verify_prediction
from lab.simulate.compare import FIGURES, run_figures
from lab.simulate.costs import cost_json
from lab.tests.simulate.costs import COSTS
from tests.docs.pages import ROOT

MEASURED = ROOT / "benchmarks/results/h200_capacity"
RUN = "closed-001"
BEFORE, AFTER = "2026-01-01T00:00:00+00:00", "2030-01-01T00:00:00+00:00"
Edit = Callable[[dict[str, Any]], object]


def unchanged(document: dict[str, Any]) -> None:
    """Leave a file as it is."""


def verify(directory: Path, prediction: Edit = unchanged, model: Edit = unchanged) -> int:
    """Hold a prediction that comes out as measured against its measurement, after these changes of its files."""
    run = read_run(MEASURED / f"{RUN}{RUN_SUFFIX}")
    written: dict[str, tuple[dict[str, Any], Edit]] = {
        "prediction": (
            {
                "predictions": {RUN: {"load": dict(run.load), **run_figures(run)}},
                "model": cost_json(COSTS),
                "environment": {"date_utc": BEFORE},
            },
            prediction,
        ),
        "model": ({"model": cost_json(COSTS), "fit": {"end_to_end_runs": {"closed-016": None}}}, model),
    }
    options = ["--measured", str(MEASURED), "--out", str(directory / "out.json")]
    for name, (document, edit) in written.items():
        edit(document)
        path = directory / f"{name}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        options += [f"--{name}", str(path)]
    return verify_prediction.main(options)


def scale_first_audio(factor: float) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        document["predictions"][RUN]["ttfa_p95_ms"] *= factor

    return edit


def test_every_predicted_run_is_held_against_its_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, scale_first_audio(1.1)) == 0

    (run,) = json.loads((tmp_path / "out.json").read_text("utf-8"))["runs"]
    assert run["error"] == pytest.approx({**dict.fromkeys(FIGURES, 0.0), "ttfa_p95_ms": 0.1})
    assert "not within 15%: no figure" in capsys.readouterr().out


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_figure_that_misses_the_aim_fails_and_is_named(
    factor: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, scale_first_audio(factor)) == 1
    assert f"not within 15%: closed-001 ttfa_p95_ms {factor - 1:+.1%}" in capsys.readouterr().out
    assert (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("prediction", "model", "said"),
    [
        pytest.param(
            lambda document: document["predictions"].update({"closed-777": {"load": {}}}),
            unchanged,
            "lacks ['closed-777']; measure them with lab/simulate/prediction.sh",
            id="a run that was not measured",
        ),
        pytest.param(
            lambda document: document["predictions"][RUN]["load"].update({"requests": 1}),
            unchanged,
            "other loads under the names ['closed-001']",
            id="a run of the same name under another load",
        ),
        pytest.param(
            unchanged,
            lambda document: document["fit"]["end_to_end_runs"].update({RUN: None}),
            "the model was fitted to ['closed-001'], so that these prove nothing",
            id="a run that the model was fitted to",
        ),
        pytest.param(
            unchanged,
            lambda document: document["model"]["llm"].update({"request_s": 1.0}),
            "was made with another model than",
            id="the file of another model",
        ),
        pytest.param(
            lambda document: document["environment"].update({"date_utc": AFTER}),
            unchanged,
            "expected the prediction first",
            id="a prediction after its measurement",
        ),
        pytest.param(
            lambda document: document.pop("environment"), unchanged, "not what `predict`", id="without a date"
        ),
    ],
)
def test_what_proves_nothing_is_refused(
    prediction: Edit, model: Edit, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, prediction, model) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_the_published_prediction_was_made_before_its_runs_and_holds(tmp_path: Path) -> None:
    out, results = tmp_path / "out.json", MEASURED.parent
    assert verify_prediction.main(["--measured", str(results / "h200_capacity"), "--out", str(out)]) == 0
    made, published = (json.loads(path.read_text("utf-8")) for path in (out, results / "h200_prediction.json"))
    assert {**made, "environment": None} == {**published, "environment": None}
