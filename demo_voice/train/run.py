"""Runs phases of the training, one after another, the stages of a phase side by side: `python -m demo_voice.train.run`.

    python -m demo_voice.train.run --work WORK --carry carry/demo_voice corpus:110 tokenizer+speaker+vocoder:300

A phase is its stages joined by +, and the seconds each of them may train. They take the GPUs in turn; several small
models share one well, too: alone, none of them fills it. Takes up the carried state where the workspace has none, and
hands the state out after every phase, also when a stage has failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from demo_voice.train.collect import ENGINES_ARCHIVE, unpack_engines
from demo_voice.train.workspace import Workspace

logger = logging.getLogger(__name__)

STATE_FOLDER = "state"
"""Name of the folder with results of an earlier run, in the carried folder."""
_CPU_THREADS = "2"
"""CPU threads of each stage: little is left to the CPU, and many threads would wait for cores that make corpus."""


@dataclass(frozen=True)
class Phase:
    """Stages that run side by side."""

    stages: tuple[str, ...]
    wall_s: float


def parse_phase(text: str) -> Phase:
    """Read `stage+stage:seconds`.

    Raises:
        argparse.ArgumentTypeError: it is of another form.
    """
    names, colon, seconds = text.rpartition(":")
    try:
        wall_s = float(seconds)
    except ValueError as err:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected STAGE+STAGE:SECONDS") from err
    if not (colon and names) or wall_s <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected STAGE+STAGE:SECONDS")
    return Phase(tuple(names.split("+")), wall_s)


def prepare(work: Workspace, carried: Path) -> None:
    """Unpack engines, texts and an earlier state into the workspace, where they are missing."""
    work.root.mkdir(parents=True, exist_ok=True)
    if (carried / ENGINES_ARCHIVE).is_file():
        unpack_engines(carried / ENGINES_ARCHIVE, work.engines)
    if (carried / "texts").is_dir() and not work.texts.exists():
        shutil.copytree(carried / "texts", work.texts)
    work.adopt(carried / STATE_FOLDER)


def run_phase(work: Workspace, phase: Phase, options: Sequence[str]) -> list[str]:
    """Run a phase's stages side by side; returns the names of those that failed."""
    began = time.monotonic()
    processes = {stage: _start(work, stage, phase, options) for stage in phase.stages}
    try:
        failed = [stage for stage, process in processes.items() if process.wait() != 0]
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
    logger.info("phase %s took %.1f s", "+".join(phase.stages), time.monotonic() - began)
    return failed


def _start(work: Workspace, stage: str, phase: Phase, options: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "demo_voice.train.stages", stage, "--work", str(work.root)]
    environment = {
        "OMP_NUM_THREADS": _CPU_THREADS,
        **os.environ,
        "CUDA_VISIBLE_DEVICES": _gpu(phase.stages.index(stage)),
    }
    return subprocess.Popen([*command, "--wall-s", str(phase.wall_s), *options], env=environment)


def _gpu(turn: int) -> str:
    """Return the GPU of a phase's stage; nothing where there is none."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return visible.split(",")[turn % max(count, 1)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the phases; returns 1 if a stage failed, and goes on to no phase after it."""
    parser = argparse.ArgumentParser(prog="python -m demo_voice.train.run", description=__doc__.splitlines()[0])
    parser.add_argument("phases", nargs="+", type=parse_phase, metavar="STAGE+STAGE:SECONDS")
    parser.add_argument("--work", type=Path, required=True, help="folder of the training")
    parser.add_argument("--carry", type=Path, required=True, help="what was carried along; an earlier state in state/")
    parser.add_argument("--out", type=Path, help="copy the state there at the end")
    parser.add_argument("--sizes", default="demo", help="sizes of the models (default %(default)s)")
    parser.add_argument("--options", default="", help="further options of every stage, in one string")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    work = Workspace(args.work)
    prepare(work, args.carry)
    failed: list[str] = []
    try:
        for phase in args.phases:
            failed = run_phase(work, phase, ["--sizes", args.sizes, *args.options.split()])
            if args.out is not None:
                work.hand_out(args.out)
            if failed:
                logger.error("failed: %s", ", ".join(failed))
                break
    finally:
        if args.out is not None:
            work.hand_out(args.out)
    return 1 if failed else 0


if __name__ == "__main__":
    # A time limit ends us by this signal; what was trained is handed out all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    raise SystemExit(main())
