"""The listening page: its section names the sounds that lie beside it, no more and no fewer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from demo_voice.unpack import BUNDLE, VOICES
from lab.tests.ears.conftest import harmonics
from lab.train.make_voices import VOICES_OF
from lab.train.teachers.flite import RATE_HZ, Spoken
from lab.voice import listening_page
from lab.voice.listening_page import (
    BEGIN,
    END,
    PageError,
    Sound,
    section,
    sound_name,
    voice_names,
    with_section,
    write_sounds,
)

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"\(sounds/([\w.-]+\.opus)\)")


def sound(who: str = "new", voice: str = "default", sentence: int = 0, seconds: float = 0.5) -> Sound:
    return Sound(who, voice, sentence, harmonics(150.0, seconds, 24_000))


@pytest.mark.parametrize("teachers", VOICES_OF)
def test_every_voice_stands_beside_its_teacher(teachers: str) -> None:
    named = NAMED.findall(section(teachers))

    assert len(named) == len(set(named)) == 2 * (3 + len(VOICES_OF[teachers]) - 1)
    for voice in voice_names(teachers):
        assert {sound_name("new", voice, 0), sound_name("teacher", voice, 0)} <= set(named)
    rows = [line for line in section(teachers).splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {5}


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"# Voices\n\n{BEGIN}\nold\n{END}\nafter\n"

    once = with_section(page, "new\n")

    assert once == f"# Voices\n\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert with_section(once, "new\n") == once
    for broken in ("# Voices\n", f"{END}\n{BEGIN}\n"):
        with pytest.raises(PageError, match="has no lines"):
            with_section(broken, "new\n")


def test_sounds_replace_those_before_unless_they_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("old-default-9.opus", "demo-voice.mp3"):
        (tmp_path / name).write_text("kept", encoding="utf-8")
    monkeypatch.setattr(listening_page, "MAX_BYTES", 100)
    with pytest.raises(PageError, match="expected at most 100"):
        write_sounds(tmp_path, [sound()])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-voice.mp3", "old-default-9.opus"]
    monkeypatch.undo()

    size = write_sounds(tmp_path, [sound(), sound("teacher")])

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "demo-voice.mp3",
        "new-default-1.opus",
        "teacher-default-1.opus",
    ]
    assert size == sum(path.stat().st_size for path in tmp_path.glob("*.opus")) > 0
    samples, rate_hz = soundfile.read(tmp_path / "new-default-1.opus")
    assert (rate_hz, len(samples)) == (24_000, 12_000)
    assert np.abs(samples).max() > 0.1


@dataclass
class Buzzer:
    """A teacher."""

    teachers: str
    engines: Path | None

    def speak(self, text: str, voice: str) -> Spoken:
        return Spoken(harmonics(150.0, len(text) / 100), (), RATE_HZ)


def test_one_run_writes_the_page_and_its_sounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def product(bundle: Path, voices: Path, names: Sequence[str]) -> Iterator[Sound]:
        assert (bundle, voices) == (BUNDLE, VOICES)
        for name in names:
            for sentence in listening_page.said(name):
                yield sound("new", name, sentence)

    monkeypatch.setattr(listening_page, "SourceVoices", Buzzer)
    monkeypatch.setattr(listening_page, "product_sounds", product)
    page = tmp_path / "voices.md"
    page.write_text(f"# Voices\n\n{BEGIN}\n{END}\n", encoding="utf-8")
    arguments = ["--docs", str(tmp_path)]

    assert listening_page.main(arguments) == 0

    found = sorted(path.name for path in (tmp_path / "sounds").iterdir())
    assert found == sorted(NAMED.findall(page.read_text("utf-8"))) and len(found) > 9
    page.write_text("# Voices\n", encoding="utf-8")
    assert listening_page.main(arguments) == 2
    assert "has no lines" in capsys.readouterr().err


def test_the_page_names_the_sounds_that_lie_beside_it() -> None:
    page = (ROOT / "docs/voices.md").read_text("utf-8")

    assert page.count(BEGIN) == page.count(END) == 1
    assert sorted(NAMED.findall(page)) == sorted(path.name for path in (ROOT / "docs/sounds").glob("*.opus"))
