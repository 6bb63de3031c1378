"""The study of speech that keeps to its text: its texts, its judgement, and a quick run of the whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.word_errors import WordErrors
from gateway.text import load_text_front_end
from lab.ears.moonshine import END_ID
from lab.ears.study import Heard
from lab.tests.ears.test_moonshine import write_models
from lab.tests.fake_flite import install_fake_flite
from lab.voice import guard
from lab.voice.guard_study import (
    GuardRow,
    SpokenSegment,
    bad_shares,
    figures,
    row_from_json,
    row_json,
    shares_by_recogniser,
)
from lab.voice.guard_texts import KINDS, LONGEST_LONG, SHORTEST_LONG, TEXTS_A_KIND, guard_texts
from lab.voice.hearing import heard_as
from tests.workers import demo_checkpoint

TEXTS_SHA256_BEGINS = "e56ef16b"
"""Figures are of these texts only."""
RIGHT, WRONG = Heard("all right", WordErrors(0, 2)), Heard("or light", WordErrors(2, 2))
GOOD, MISHEARD = {"a": RIGHT, "b": RIGHT}, {"a": WRONG, "b": WRONG}


def row(number: int = 0, **changes: object) -> GuardRow:
    segments = (SpokenSegment("All right.", 0, (1, 2), "stop"),)
    made = GuardRow(number, "short", "All right.", "All right.", segments, 1.0, GOOD, 1.0, None)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_the_texts_are_the_same_everywhere_and_of_five_kinds() -> None:
    texts = guard_texts()
    assert hashlib.sha256("".join(text.text for text in texts).encode()).hexdigest().startswith(TEXTS_SHA256_BEGINS)
    assert Counter(text.kind for text in texts) == dict.fromkeys(KINDS, TEXTS_A_KIND)
    assert len({text.text for text in texts}) == len(texts) and [text.number for text in texts] == [*range(1000)]
    assert all(SHORTEST_LONG <= len(text.text) <= LONGEST_LONG for text in texts if text.kind == "long")
    assert all(1 <= len(text.text.split()) <= 3 for text in texts if text.kind == "short")


@pytest.mark.parametrize(
    ("changes", "is_bad"),
    [
        pytest.param({}, False, id="good"),
        pytest.param({"heard": MISHEARD, "source": GOOD}, True, id="misheard"),
        pytest.param({"heard": MISHEARD, "source": MISHEARD}, False, id="the source is misheard too"),
        pytest.param({"heard": {"a": WRONG, "b": RIGHT}, "source": GOOD}, False, id="one recogniser understands it"),
        pytest.param({"heard": MISHEARD, "source": {"a": WRONG, "b": RIGHT}}, True, id="one understands the source"),
        pytest.param({"audio_s": 2.3}, True, id="too long"),
        pytest.param({"audio_s": 0.4, "source_s": 2.0}, True, id="too short"),
    ],
)
def test_a_row_is_bad_if_misheard_or_out_of_bounds(changes: dict[str, Any], is_bad: bool) -> None:
    assert row(**changes).is_bad is is_bad
    assert bad_shares([row(), row(**changes)]) == {"short": is_bad / 2, "all": is_bad / 2}


def test_each_recogniser_alone_has_a_share_too() -> None:
    rows = [
        row(),
        row(heard={"a": WRONG, "b": RIGHT}, source=GOOD),
        row(heard=MISHEARD, source={"a": RIGHT, "b": WRONG}),
    ]
    assert shares_by_recogniser(rows) == pytest.approx({"a": 2 / 3, "b": 0.0})
    assert shares_by_recogniser([row(audio_s=9.0)]) == {"a": 1.0, "b": 1.0}


def test_the_guards_rows_replace_those_before() -> None:
    bad = {"audio_s": 9.0}
    before = [row(0), row(1, **bad), row(2, **bad), row(3)]
    assert figures(before, [row(1, notes=("long mended",))]) == {
        "sentences": 4,
        "excess_bad_share_before": 0.5,
        "excess_bad_share_after": 0.25,
    }


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [row(0), row(1, heard=MISHEARD, source=GOOD, notes=("loop cut",))]
    assert [row_from_json(json.loads(json.dumps(row_json(each)))) for each in rows] == rows
    file = guard.RowFile(tmp_path / "rows.jsonl")
    file.append(rows[0])
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text("utf-8") + '{"number": 1, "broken', "utf-8")
    again = guard.RowFile(path)
    assert again.rows == {0: rows[0]}
    again.append(rows[1])
    assert guard.read_rows(path) == rows


@pytest.mark.parametrize(
    ("text", "transcript", "errors"),
    [
        ("Goodbye!", "Good-bye.", 0),
        ("I scream for ice cream.", "I scream for ice-cream.", 0),
        ("Good evening.", "Good-bye.", 1),
        ("Mister Hill paid five dollars.", "Mr. Hill paid $5.", 0),
        ("The code is eighty three thousand.", "The code is 83,001.", 2),
        ("Call six three zero, one three two.", "Call 630-132.", 0),
        ("No?", "No.", 0),
    ],
)
async def test_transcripts_are_judged_as_they_are_spoken(text: str, transcript: str, errors: int) -> None:
    assert (await heard_as(transcript, text, load_text_front_end())).errors.errors == errors


class Deaf:
    """Understands nothing."""

    def transcribe(self, samples: object) -> str:
        return ""


@pytest.mark.slow
def test_a_quick_run_speaks_judges_and_goes_on_where_it_was(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "SphinxRecogniser", Deaf)
    monkeypatch.setattr(guard, "teachers_of", lambda _: "flite")
    short = [text for text in guard_texts() if text.kind == "short"]
    monkeypatch.setattr(guard, "guard_texts", lambda: short)
    engines = install_fake_flite(tmp_path / "engines")
    out, audio = tmp_path / "guard.json", tmp_path / "audio"
    checkpoint = demo_checkpoint(tmp_path_factory)
    arguments = ["--checkpoint", str(checkpoint), "--engines", str(engines), "--audio-dir", str(audio)]
    arguments += ["--moonshine", str(write_models(tmp_path, {1: 3, 3: END_ID}, {}))]

    for limit in (1, 2):
        assert guard.main([*arguments, "--limit", str(limit), "--out", str(out)]) == 0
        assert json.loads(out.read_text("utf-8"))["figures"]["sentences"] == limit

    rows = guard.read_rows(tmp_path / "guard.before.jsonl")
    assert [each.number for each in rows] == [text.number for text in short[:2]]
    assert {each.heard["moonshine"].transcript for each in rows} == {"hello"}
    assert all(each.source is not None and list(each.source) == ["pocketsphinx", "moonshine"] for each in rows)
    assert all(each.audio_s > 0.3 and each.segments[0].finish_reason == "stop" for each in rows)
    assert sorted(path.stem for path in audio.iterdir()) == sorted(f"{text.number:04}" for text in short[:2])
