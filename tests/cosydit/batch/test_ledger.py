"""Resuming a batch: what counts as done, and what a kill may leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosydit.batch.ledger import Ledger
from cosydit.bench.types import BenchmarkError

SAMPLES = np.zeros(2400, np.float32)
UTTS = frozenset({"a", "b", "c"})


def _ledger(tmp_path: Path, audio_format: str = "wav") -> Ledger:
    return Ledger(tmp_path / "out", audio_format, UTTS)


def _finish(ledger: Ledger, utt: str) -> None:
    name = ledger.write_audio(utt, SAMPLES)
    ledger.append({"utt": utt, "audio": name})


def _results(ledger: Ledger) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in ledger.audio_path("a").with_name("results.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_what_is_written_is_done_after_a_restart(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        _finish(ledger, "a")
    with _ledger(tmp_path) as ledger:
        assert (ledger.is_done("a"), ledger.is_done("b")) == (True, False)
        assert _results(ledger) == [{"utt": "a", "audio": "a.wav"}]


def test_a_kill_between_file_and_line_loses_no_result(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        ledger.write_audio("a", SAMPLES)
    with _ledger(tmp_path) as ledger:
        assert _results(ledger) == [{"utt": "a", "audio": "a.wav", "audio_s": 0.1, "is_recovered": True}]


def test_a_torn_line_and_a_partial_file_are_dropped(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        _finish(ledger, "a")
    (tmp_path / "out" / ".b.wav.part").write_bytes(b"RIFF")
    with (tmp_path / "out" / "results.jsonl").open("a", encoding="utf-8") as results:
        results.write('{"utt": "b", "aud')
    with _ledger(tmp_path) as ledger:
        assert [result["utt"] for result in _results(ledger)] == ["a"]
        assert not ledger.is_done("b")
        assert not list((tmp_path / "out").glob(".*.part"))


def test_a_line_whose_audio_was_removed_is_not_doubled_by_the_next_run(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        _finish(ledger, "a")
    (tmp_path / "out" / "a.wav").unlink()
    with _ledger(tmp_path) as ledger:
        assert not ledger.is_done("a")
        _finish(ledger, "a")
        assert [result["utt"] for result in _results(ledger)] == ["a"]


def test_another_format_is_another_batch(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        _finish(ledger, "a")
    with _ledger(tmp_path, "flac") as ledger:
        assert not ledger.is_done("a")
        _finish(ledger, "a")
        assert _results(ledger) == [{"utt": "a", "audio": "a.flac"}]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.wav").write_bytes(b"not even audio")
    with _ledger(tmp_path) as ledger:
        assert _results(ledger) == []
    assert (tmp_path / "out" / "mine.wav").exists()


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    with _ledger(tmp_path), pytest.raises(BenchmarkError, match="another batch"), _ledger(tmp_path):
        pass


@pytest.mark.parametrize("utt", ["../a", "a/b", ".hidden", "", "x" * 201, "a\nb"])
def test_names_that_can_not_be_files_are_refused(tmp_path: Path, utt: str) -> None:
    with pytest.raises(BenchmarkError, match="can't be a file name"):
        _ledger(tmp_path).is_done(utt)
