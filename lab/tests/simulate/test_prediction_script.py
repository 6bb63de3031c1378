"""What `lab/simulate/prediction.sh` runs, over a Python that only notes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SCRIPT = ROOT / "lab/simulate/prediction.sh"
PYTHON = r"""#!/usr/bin/env bash
echo "$*" | tr '\n' ' ' >> "{calls}"
echo >> "{calls}"
case "$*" in
  *"main serve"*) echo "speak: now"; exec sleep 60 ;;
  *verify_prediction*) exit {verified} ;;
esac
"""


def predict(directory: Path, verified: int = 0) -> tuple[int, list[str]]:
    """Run the script; returns its exit status and the command lines of what it started."""
    calls, python = directory / "calls", directory / "python"
    python.write_text(PYTHON.format(calls=calls, verified=verified), encoding="utf-8")
    python.chmod(0o755)
    variables = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "OUT": str(directory), "WORK": str(directory / "work")}
    done = subprocess.run(["bash", str(SCRIPT)], env=variables, capture_output=True, timeout=60, check=False)
    return done.returncode, calls.read_text("utf-8").splitlines()


def test_a_prediction_is_held_against_its_measurement_with_the_model_that_it_was_made_with(tmp_path: Path) -> None:
    status, calls = predict(tmp_path)
    names = ["checkpoint make-random", "main serve", "end_to_end", "fit", "predict", "end_to_end", "verify_prediction"]
    assert status == 0
    assert [name for name, call in zip(names, calls, strict=True) if name not in call] == []
    assert f"--prediction {tmp_path}/prediction_gpu.json --model {tmp_path}/cost_model_gpu.json" in calls[-1]


def test_a_prediction_that_is_there_is_not_made_again_after_its_measurement(tmp_path: Path) -> None:
    (tmp_path / "prediction_gpu.json").touch()
    _, calls = predict(tmp_path)
    assert not [call for call in calls if "lab.simulate fit" in call or "lab.simulate predict" in call]


@pytest.mark.parametrize("verified", [1, 2])
def test_the_part_fails_where_the_prediction_does(verified: int, tmp_path: Path) -> None:
    status, _ = predict(tmp_path, verified)
    assert status == verified
