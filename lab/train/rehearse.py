"""Measures the steps of every stage, with CUDA graphs and without: `python -m lab.train.rehearse --work WORK`.

Makes a small corpus first, and states out of the bundled weights. Prints one JSON line a stage and way of stepping:
steps a second once everything is captured, and the losses' means, which should be alike. The vocoder is measured twice,
without and with its judges. Where a graph can't be captured, the log says so and the paces are alike.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from lab.train import stages
from lab.train.models import flow
from lab.train.models.vocoder import ADVERSARIAL_FROM
from lab.train.teachers.choices import HIBARI
from lab.train.trainer import Trainee

UTTERANCES = 768
"""About 40 minutes."""
CORPUS_S = 60.0
PACE_S = 3.0
_EAGER_SETTLE = 0.5
_BEGUN = 0.01
_CASES = (
    ("tokenizer", _BEGUN, 1.5),
    ("speaker", _BEGUN, 1.5),
    ("vocoder", _BEGUN, 2.0),
    ("vocoder", ADVERSARIAL_FROM, 3.0),
    ("flow", _BEGUN, 4.0),
    ("llm", _BEGUN, 2.5),
)
"""Stages, their progress, and how long algorithms are chosen and graphs captured before the clock starts, in times of
what it then runs. The flow has sixteen shapes, and is judged from its first step."""


def paced(trainee: Trainee, progress: float, settle_s: float, pace_s: float) -> dict[str, float]:
    """Step for a while; returns steps a second and the losses' means after the first `settle_s` seconds.

    Raises:
        ArithmeticError: a loss is no number.
    """
    _steps(trainee, progress, settle_s)
    began = time.monotonic()
    steps, means = _steps(trainee, progress, pace_s)
    wrong = [name for name, value in means.items() if not math.isfinite(value)]
    if wrong:
        raise ArithmeticError(f"{trainee.name}: {wrong} are no numbers")
    return {"steps_a_second": steps / (time.monotonic() - began), **means}


def _steps(trainee: Trainee, progress: float, seconds: float) -> tuple[int, Mapping[str, float]]:
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for name, value in trainee.step(progress).items():
            sums[name] += value  # type: ignore[assignment]  # stays on the device
            counts[name] += 1
        steps += 1
    # Reading them waits for the device.
    return steps, {name: float(value) / counts[name] for name, value in sums.items()}


def rehearse(common: Sequence[str], is_warm: bool, pace_s: float) -> None:
    """Make corpus, states and codes, then measure.

    Args:
        common: options of every stage.
        is_warm: states come out of the bundled weights, else out of three steps.
        pace_s: seconds of each measure.
    """
    parse = stages.parser().parse_args
    flow.JUDGED_FROM = 0
    begun = [["warm"]] if is_warm else [[stage, "--max-steps", "3"] for stage in ("tokenizer", "speaker")]
    for stage, *own in (["corpus", "--wall-s", str(CORPUS_S)], *begun, ["codes"]):
        began = time.monotonic()
        if stages.main([stage, *common, *own]):
            raise SystemExit(f"the stage {stage} failed")
        _tell({"stage": stage, "seconds": time.monotonic() - began})
    for stage, progress, graphs_settle in _CASES:
        for way, own, settle in (("graphs", [], graphs_settle), ("eager", ["--eager"], _EAGER_SETTLE)):
            options = stages.prepared(parse([stage, *common, *own]))
            trainee = stages.TRAINEES[stage](options)
            if options.is_eager:
                trainee.replayer.stop_capturing()
            figures = paced(trainee, progress, settle * pace_s, pace_s)
            _tell({"stage": stage, "progress": progress, "way": way, **figures})
            del trainee
            if options.device.type == "cuda":
                torch.cuda.empty_cache()


def _tell(figures: Mapping[str, float | str]) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    sys.stdout.write(json.dumps(rounded) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.rehearse", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder; texts/ lies there, as for every stage")
    parser.add_argument("--teachers", default=HIBARI, help="of the corpus (default %(default)s)")
    parser.add_argument("--sizes", default="demo", help="default %(default)s")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default %(default)s")
    parser.add_argument("--utterances", type=int, default=UTTERANCES, help="of the corpus (default %(default)s)")
    parser.add_argument("--batch", type=int, help="of every stage (default: the plan's)")
    parser.add_argument("--pace-s", type=float, default=PACE_S, help="seconds of each measure (default %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that make the corpus")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    common = ["--work", args.work, "--teachers", args.teachers, "--sizes", args.sizes, "--device", args.device]
    common += ["--utterances", args.utterances, "--workers", args.workers]
    common += ["--batch", args.batch] if args.batch else []
    rehearse([str(option) for option in common], args.sizes == "demo", args.pace_s)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
