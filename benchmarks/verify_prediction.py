"""Holds a prediction that was committed before its measurement against it: `python -m benchmarks.verify_prediction`.

`benchmarks/gpu.sh prediction` measures; the prediction is what `python -m benchmarks.simulate predict` wrote before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import read_runs
from benchmarks.lib.environment import describe_environment
from benchmarks.lib.report import aligned_table, write_json
from benchmarks.lib.simulate.compare import AIM, FIGURES, ComparedRun, comparison_json, comparison_rows, run_figures
from benchmarks.lib.simulate.compare import worst_errors as worst_errors_of
from benchmarks.lib.types import BenchmarkError

PREDICTION = Path(__file__).parent / "results/prediction_h200.json"


def compared(prediction: Path, measured: Path) -> list[ComparedRun]:
    """Pair every predicted run with its measurement.

    Raises:
        BenchmarkError: a predicted run was not measured, or under another load.
    """
    runs = read_runs(measured)
    predicted = json.loads(prediction.read_text("utf-8"))["predictions"]
    missing = sorted(predicted.keys() - runs.keys())
    if missing:
        raise BenchmarkError(f"{measured} lacks {missing}; measure them with benchmarks/gpu.sh prediction")
    other = [name for name, figures in predicted.items() if figures["load"] != runs[name].load]
    if other:
        raise BenchmarkError(
            f"{measured} has other loads under the names {other} than were predicted; see measure_with"
        )
    return [ComparedRun(name, False, run_figures(runs[name]), figures) for name, figures in sorted(predicted.items())]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison and write it; returns 0, or 2 where there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_prediction", description=__doc__)
    parser.add_argument("--prediction", type=Path, default=PREDICTION, help="JSON of `predict` (default %(default)s)")
    parser.add_argument("--measured", type=Path, required=True, help="directory of benchmarks.end_to_end")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    args = parser.parse_args(argv)
    try:
        runs = compared(args.prediction, args.measured)
    except (BenchmarkError, OSError) as error:
        print(f"verify_prediction: {error}", file=sys.stderr)
        return 2
    worst = worst_errors_of(runs)
    document = {"aim": AIM, "runs": comparison_json(runs), "worst_error": worst}
    write_json(args.out, {**document, "environment": describe_environment(vars(args))})
    print(aligned_table(comparison_rows(runs)))
    held = [figure for figure in FIGURES if worst[figure] <= AIM]
    print(f"within {AIM:.0%} in every run: {', '.join(held) or 'no figure'}; {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
