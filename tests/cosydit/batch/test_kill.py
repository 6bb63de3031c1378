"""A batch that is killed at any moment and started again gives the complete set, once each, and whole."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cosydit.batch.ledger import Ledger
from cosydit.batch.pipeline import BatchPipeline, utterance_seed
from cosydit.batch.types import BatchPlan, BatchReport
from cosydit.bench.types import SpeechInput
from servicekit.clock import SystemClock
from tests.cosydit.batch.scripted_stages import ScriptedLLM, ScriptedToken2Wav, spoken

pytestmark = pytest.mark.slow

UTTERANCES = 120
BATCH_SIZE = 4
STEP_S = 0.05
KILLS = 3
LATEST_KILL_S = 0.4
"""After the start of the work; the whole takes at least 1.5 s, so that every kill finds work."""


def speak(output_dir: Path, voice: Path) -> BatchReport:
    """Speak what is not done yet, as `run_batch` does, with services that take no time but token2wav's steps."""
    rows = [SpeechInput(f"u{index}", str(20 + index), "says", voice) for index in range(UTTERANCES)]
    report = BatchReport(len(rows))
    with Ledger(output_dir, "wav", {row.utt for row in rows}) as ledger:
        todo = [row for row in rows if not ledger.is_done(row.utt)]
        report.done_before = len(rows) - len(todo)
        sys.stdout.write("go\n")
        sys.stdout.flush()
        plan = BatchPlan(BATCH_SIZE, BATCH_SIZE)
        stages = (ScriptedLLM().complete, ScriptedToken2Wav(STEP_S))
        asyncio.run(BatchPipeline(*stages, ledger, plan, report, SystemClock()).run(todo))
    return report


def _kill_at_a_random_moment(output_dir: Path, voice: Path, moment_s: float) -> None:
    program = f"import sys, pathlib, {__name__} as test; test.speak(*map(pathlib.Path, sys.argv[1:]))"
    command = [sys.executable, "-c", program, str(output_dir), str(voice)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "go\n"
        time.sleep(moment_s)
        child.kill()
    assert child.returncode == -signal.SIGKILL


def test_a_service_that_a_killed_batch_had_started_ends_too(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from cosydit.stack.process import ServiceProcess, ServiceSpec\n"
        "spec = ServiceSpec('llm_service', ['sleep', '60'], 'http://127.0.0.1:9/health', pathlib.Path(sys.argv[1]))\n"
        "with ServiceProcess(spec) as service:\n"
        "    print(service.pid, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        service = int(child.stdout.readline())
        child.kill()
    assert _ends(service)


def _ends(pid: int) -> bool:
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_three_kills_at_random_moments_lose_double_and_corrupt_nothing(tmp_path: Path, checkpoint: Path) -> None:
    rng = random.Random(0)
    out, voice = tmp_path / "out", checkpoint / "voices" / "default.wav"
    done = [0]
    for _ in range(KILLS):
        _kill_at_a_random_moment(out, voice, rng.uniform(0.1, LATEST_KILL_S))
        done.append(len(list(out.glob("*.wav"))))
    report = speak(out, voice)
    assert done == sorted(done) and 0 < done[-1] < UTTERANCES
    assert (report.done_before, report.done, report.failures) == (done[-1], UTTERANCES - done[-1], [])
    _check_complete(out)


def _check_complete(out: Path) -> None:
    names = [f"u{index}" for index in range(UTTERANCES)]
    lines = (out / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["utt"] for line in lines) == sorted(names)
    assert sorted(path.name for path in out.glob("*.wav")) == sorted(f"{name}.wav" for name in names)
    assert not list(out.glob(".*.part"))
    for index, name in enumerate(names):
        samples, rate_hz = soundfile.read(out / f"{name}.wav", dtype="float32")
        seed = utterance_seed(0, name)
        expected = spoken([(seed + token) % 6561 for token in range(20 + index)])
        assert rate_hz == 24_000 and len(samples) == len(expected)
        assert np.abs(samples - expected).max() < 1e-4
