"""What the parts of `benchmarks/gpu.sh` run, over a Python that only notes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SCRIPT = ROOT / "benchmarks/gpu.sh"
PYTHON = r"""#!/usr/bin/env bash
echo "$* ${{COSYDIT_MPS:+COSYDIT_MPS=$COSYDIT_MPS}}" | tr '\n' ' ' >> "{calls}"
echo >> "{calls}"
case "$*" in
  *"main serve"*) echo "speak: now"; exec sleep 60 ;;
esac
"""


def run(directory: Path, part: str, path: str = "/usr/bin:/bin") -> tuple[int, list[str]]:
    """Run a part; returns its exit status and the command lines of what it started."""
    calls, python = directory / "calls", directory / "python"
    calls.unlink(missing_ok=True)
    python.write_text(PYTHON.format(calls=calls), encoding="utf-8")
    python.chmod(0o755)
    variables = {"PATH": path, "PYTHON": str(python), "OUT": str(directory), "WORK": str(directory / "work")}
    done = subprocess.run(["bash", str(SCRIPT), part], env=variables, capture_output=True, timeout=60, check=False)
    return done.returncode, calls.read_text("utf-8").splitlines()


def test_each_family_is_looked_at_and_then_measured_alone_end_to_end_and_offline(tmp_path: Path) -> None:
    (tmp_path / "gpu_cosyvoice2_engine.json").touch()
    status, calls = run(tmp_path, "families")
    names = ["make-random", "serve", "end_to_end", "offline_input", "offline_batch", "figures"]
    assert status == 0
    # The checkpoint is made again only because nothing has made it.
    second = [name for name, call in zip([*names[:3], "make-random", *names[3:]], calls, strict=False) if name in call]
    assert second == [*names[:3], "make-random", *names[3:]]
    look, measure, *others = calls[7:]
    assert "--family cosyvoice3 --quick --out" in look
    assert f"--family cosyvoice3 --out {tmp_path}/gpu_cosyvoice3_engine.json" in measure
    assert "make-random" in others[0] and "--family cosyvoice3" in others[0]
    serve, load = others[1:3]
    assert "--set " not in serve and "--llm-backend" not in serve, "a plain server chooses for itself"
    assert "--closed 1 --open 16" in load
    assert f"--offline {tmp_path}/offline_gpu_cosyvoice3.json --out {tmp_path}/gpu_families.json" in others[-1]


def put_command(directory: Path, name: str, script: str) -> str:
    """Write a command that stands in for one of NVIDIA's; returns the path to find it by."""
    command = directory / name
    command.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    command.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("part", "loads", "mps"),
    [
        ("end_to_end", "--closed 1 --open 10 20 32 64 80 100 --audible 1 6 10 20 32 --unseen 12 --open-s 20", "on"),
        ("without_mps", "--closed 1 --open 32 --unseen 0 --open-s 20", "off"),
    ],
)
def test_a_sweep_loads_a_plain_server(part: str, loads: str, mps: str, tmp_path: Path) -> None:
    path = put_command(tmp_path, "nvidia-cuda-mps-control", ":")
    status, (make, serve, load) = run(tmp_path, part, path=path)
    assert status == 0 and "make-random" in make
    assert "--set " not in serve and "--llm-backend" not in serve, "a plain server chooses for itself"
    assert ("COSYDIT_MPS=off" in serve) == (mps == "off"), "else it starts a daemon"
    assert f"--out {tmp_path}/gpu_{part} " in load and loads in load
    assert f'"mps": "{mps}"' in load and (tmp_path / f"gpu_{part}/summary.txt").is_file()


def test_the_services_are_measured_apart_on_every_number_of_gpus(tmp_path: Path) -> None:
    status, calls = run(tmp_path, "disaggregated", path=put_command(tmp_path, "nvidia-smi", "seq 3"))
    served = [call for call in calls if "main serve" in call]
    assert status == 0
    assert [
        "--token2wav-gpus 1 --token2wav-replicas 1" in served[0],
        "--token2wav-gpus 1,2 --token2wav-replicas 2" in served[1],
    ] == [True, True]
    assert ["--open 64 128 " in call for call in calls if "end_to_end" in call] == [False, True]


def test_what_needs_two_gpus_comes_last_so_that_the_others_are_measured_on_one() -> None:
    usage = subprocess.run(["bash", str(SCRIPT), "--help"], capture_output=True, text=True, timeout=60, check=True)
    (parts,) = [line for line in usage.stdout.splitlines() if line.startswith("Parts ")]
    assert parts.endswith(" disaggregated.")
