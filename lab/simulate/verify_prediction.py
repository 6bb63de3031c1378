"""Holds a prediction against a measurement made after it: `python -m lab.simulate.verify_prediction`.

`lab/simulate/prediction.sh` measures; the prediction is what `python -m lab.simulate predict` wrote before.
What it may have known proves nothing: runs that its model was fitted to, and runs older than itself, are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import ENVIRONMENT_FILE
from benchmarks.figures import read_runs
from benchmarks.lib.sweep import FinishedRun
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import BenchmarkError
from lab.simulate.compare import AIM, FIGURES, ComparedRun, comparison_json, comparison_rows, run_figures
from lab.simulate.compare import worst_errors as worst_errors_of

RESULTS = Path("benchmarks/results")
PREDICTION = RESULTS / "prediction_h200.json"
MODEL = RESULTS / "cost_model_h200.json"
EXIT_MISSED, EXIT_USAGE = 1, 2


@dataclass(frozen=True)
class Evidence:
    """The files that a comparison is made of."""

    prediction: Path
    """JSON of `lab.simulate predict`."""
    model: Path
    """JSON of `lab.simulate fit`, which the prediction was made with."""
    measured: Path
    """Directory of `benchmarks.end_to_end`."""


def compared(evidence: Evidence) -> list[ComparedRun]:
    """Pair every predicted run with its measurement.

    Raises:
        BenchmarkError: a predicted run was not measured, or under another load; the model was fitted to it, or is
            another one; or the measurement is not younger than the prediction.
    """
    prediction = json.loads(evidence.prediction.read_text("utf-8"))
    model = json.loads(evidence.model.read_text("utf-8"))
    runs, predicted = read_runs(evidence.measured), prediction["predictions"]
    _check_loads(predicted, runs, evidence.measured)
    _check_model(prediction, model, evidence)
    _check_order(prediction, evidence)
    return [ComparedRun(name, False, run_figures(runs[name]), figures) for name, figures in sorted(predicted.items())]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison and write it; returns 1 where a figure misses the aim, 2 where nothing can be compared."""
    parser = argparse.ArgumentParser(prog="python -m lab.simulate.verify_prediction", description=__doc__)
    parser.add_argument("--prediction", type=Path, default=PREDICTION, help="JSON of `predict` (default %(default)s)")
    parser.add_argument(
        "--model", type=Path, default=MODEL, help="JSON of the `fit` behind the prediction (default %(default)s)"
    )
    parser.add_argument("--measured", type=Path, required=True, help="directory of benchmarks.end_to_end")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    args = parser.parse_args(argv)
    try:
        runs = compared(Evidence(args.prediction, args.model, args.measured))
    except (BenchmarkError, OSError) as error:
        print(f"verify_prediction: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (ValueError, LookupError) as error:
        print(f"verify_prediction: a file is not what `predict`, `fit` or end_to_end wrote: {error!r}", file=sys.stderr)
        return EXIT_USAGE
    worst = worst_errors_of(runs)
    document = {"aim": AIM, "runs": comparison_json(runs), "worst_error": worst}
    write_json(args.out, {**document, "environment": describe_environment(vars(args))})
    print(aligned_table(comparison_rows(runs)))
    missed = [f"{run.name} {figure} {run.error(figure):+.1%}" for run in runs for figure in missed_figures(run)]
    print(f"not within {AIM:.0%}: {', '.join(missed) or 'no figure'}; {args.out}")
    return EXIT_MISSED if missed else 0


def missed_figures(run: ComparedRun) -> list[str]:
    """Return the figures that are further off than the aim."""
    return [figure for figure in FIGURES if not abs(run.error(figure)) <= AIM]


def _check_loads(predicted: Mapping[str, Any], runs: Mapping[str, FinishedRun], measured: Path) -> None:
    missing = sorted(predicted.keys() - runs.keys())
    if missing:
        raise BenchmarkError(f"{measured} lacks {missing}; measure them with lab/simulate/prediction.sh")
    other = [name for name, figures in predicted.items() if figures["load"] != runs[name].load]
    if other:
        raise BenchmarkError(
            f"{measured} has other loads under the names {other} than were predicted; see measure_with"
        )


def _check_model(prediction: Mapping[str, Any], model: Mapping[str, Any], evidence: Evidence) -> None:
    if prediction["model"] != model["model"]:
        got = f"{evidence.prediction} was made with another model than {evidence.model}"
        raise BenchmarkError(f"{got}; name the one it was made with (--model)")
    fitted = sorted(prediction["predictions"].keys() & model["fit"]["end_to_end_runs"].keys())
    if fitted:
        raise BenchmarkError(f"the model was fitted to {fitted}, so that these prove nothing; predict other runs")


def _check_order(prediction: Mapping[str, Any], evidence: Evidence) -> None:
    measurement = json.loads((evidence.measured / ENVIRONMENT_FILE).read_text("utf-8"))
    predicted, measured = (
        datetime.fromisoformat(each["environment"]["date_utc"]) for each in (prediction, measurement)
    )
    if predicted >= measured:
        got = f"the prediction is of {predicted.isoformat()}, the measurement of {measured.isoformat()}"
        raise BenchmarkError(f"{got}; expected the prediction first: predict again, then measure again")


if __name__ == "__main__":
    raise SystemExit(main())
