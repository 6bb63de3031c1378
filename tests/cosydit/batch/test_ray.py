"""A batch over several workers: lost rows are tried once more and reported; the real thing on a local Ray."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cosydit.batch.ledger import Ledger, encode_audio
from cosydit.batch.ray_work import SpokenRow, WorkerAnswer, open_ray, spread
from cosydit.batch.types import (
    BatchPlan,
    BatchReport,
    BatchServices,
    BatchSettings,
    Failure,
    LLMSettings,
    RaySettings,
    Token2WavSettings,
)
from cosydit.bench.types import SpeechInput
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from llm_service.config import LLMBackend
from servicekit.clock import Clock
from tests.cosydit.batch.scripted_stages import SAMPLES_A_TOKEN, ScriptedLLM, ScriptedToken2Wav

AUDIO = encode_audio(np.zeros(240, np.float32), "wav")


class ScriptedWorkers:
    """Loses every task that holds the text `die`, and the first that holds `die once`."""

    def __init__(self) -> None:
        self.tasks: list[list[str]] = []
        self._has_died = False

    def map(self, rows: Sequence[SpeechInput], rows_per_task: int) -> Iterator[WorkerAnswer]:
        for start in range(0, len(rows), rows_per_task):
            task = rows[start : start + rows_per_task]
            self.tasks.append([row.utt for row in task])
            texts = {row.text for row in task}
            dies = "die" in texts or ("die once" in texts and not self._has_died)
            self._has_died |= "die once" in texts
            if not dies:
                yield _answer(task)


def _answer(task: Sequence[SpeechInput]) -> WorkerAnswer:
    report = BatchReport(len(task))
    report.failures = [Failure(row.utt, "llm", "no good") for row in task if row.text == "fail"]
    results = [{"utt": row.utt, "audio": f"{row.utt}.wav", "audio_s": 0.01} for row in task if row.text != "fail"]
    return WorkerAnswer(tuple(SpokenRow(result, AUDIO) for result in results), report)


def _rows(*texts: str) -> list[SpeechInput]:
    return [SpeechInput(f"u{index}", text) for index, text in enumerate(texts)]


def _spread(tmp_path: Path, rows: Sequence[SpeechInput]) -> tuple[ScriptedWorkers, BatchReport, int]:
    workers, report, settled = ScriptedWorkers(), BatchReport(len(rows)), []
    with Ledger(tmp_path / "out", "wav", {row.utt for row in rows}) as ledger:
        spread(workers, 2, ledger, rows, report, lambda report: settled.append("row"))
    return workers, report, len(settled)


def test_rows_of_a_worker_that_ended_are_spoken_by_another_one_and_reported(tmp_path: Path) -> None:
    workers, report, settled = _spread(tmp_path, _rows("x", "die once", "x", "x"))
    assert workers.tasks == [["u0", "u1"], ["u2", "u3"], ["u0"], ["u1"]]
    assert (report.done, report.failures, settled) == (4, [], 4)
    assert report.retried == ["u0", "u1"]


def test_a_row_whose_worker_ends_twice_has_failed_alone(tmp_path: Path) -> None:
    _, report, settled = _spread(tmp_path, _rows("x", "die", "fail", "x"))
    assert {failure.utt: failure.stage for failure in report.failures} == {"u1": "worker", "u2": "llm"}
    assert (report.done, settled) == (2, 4)
    assert report.retried == ["u0", "u1"]


class DeadlyLLM(ScriptedLLM):
    """Kills its process for the text `kill`, and once for `kill once`."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self._marker = marker

    async def complete(self, utterance: Utterance, sampling: Sampling, seed: int) -> SpeechTokenDelta:
        is_first = not self._marker.exists()
        if utterance.text == "kill" or (utterance.text == "kill once" and is_first):
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().complete(utterance, sampling, seed)


@asynccontextmanager
async def open_deadly_services(settings: BatchSettings, clock: Clock) -> AsyncIterator[BatchServices]:
    yield BatchServices(DeadlyLLM(settings.output_dir / "has died"), ScriptedToken2Wav())


def test_ray_data_gives_the_rows_of_a_killed_worker_to_another_one(tmp_path: Path, checkpoint: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    voice = checkpoint / "voices" / "default.wav"
    texts = ["3", "4", "kill once", "5", "6", "kill"]
    rows = [SpeechInput(f"u{index}", text, "says", voice) for index, text in enumerate(texts)]
    settings = BatchSettings(
        output_dir=tmp_path / "out",
        audio_format="flac",
        plan=BatchPlan(2, 2),
        llm=LLMSettings(LLMBackend.EMBEDDED, tmp_path, "http://unused"),
        token2wav=Token2WavSettings(tmp_path, None),
        ray=RaySettings("local", workers=2),
    )
    report = BatchReport(len(rows))
    with (
        Ledger(settings.output_dir, "flac", {row.utt for row in rows}) as ledger,
        open_ray(settings, open_deadly_services) as (workers, count),
    ):
        spread(workers, 2, ledger, rows, report, lambda report: None)
    assert count == 2
    assert [(failure.utt, failure.stage) for failure in report.failures] == [("u5", "worker")]
    assert sorted(report.retried) == ["u2", "u3", "u4", "u5"]
    assert soundfile.info(tmp_path / "out" / "u4.flac").frames == 6 * SAMPLES_A_TOKEN
    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["utt"] for line in lines) == ["u0", "u1", "u2", "u3", "u4"]
