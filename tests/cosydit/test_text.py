"""`cosydit text` shows how a text is cut and read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from cosydit.cli.main import main
from tests.docs.pages import DOCS, fences

pytest.importorskip("wetext", reason="the text extra is not installed")


def test_it_shows_language_segments_words_and_the_rules_that_made_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = 'It **costs** $3.50 at a.com. <break time="1s"/>2 more.'
    assert main(["text", text, "--language", "English"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "segment 1, characters 0 to 47, language en",
        f"  written  {text[:47]!r}",
        "  spoken   'It costs three dollars and fifty cents at a dot com. '",
        "  rule     cleaning and markup: '**costs**' -> 'costs'",
        "  rule     cleaning and markup: '<break time=\"1s\"/>' -> ''",
        "  rule     addresses: 'a.' -> 'a dot'",
        "  rule     amounts.money: '$3.50' -> 'three dollars and fifty cents'",
        "  silence  1 s behind it",
        "segment 2, characters 47 to 54, language en",
        "  written  '2 more.'",
        "  spoken   'two more.'",
        "  rule     WeText's grammar: '2' -> 'two'",
    ]


@pytest.mark.parametrize("page", ["text.md", "zh/text.md"])
def test_the_page_shows_what_its_command_prints(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = (fence.text for fence in fences(DOCS / page)[:2])
    assert main(shlex.split(command)[1:]) == 0
    lines = [re.sub(r"(rule .*?):\d+:", r"\1:", text) for text in (shown, capsys.readouterr().out.rstrip())]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("option", "complaint"),
    [("--language=x!", "got language 'x!'"), ("--checkpoint=/nowhere", "expected the directory of a checkpoint")],
)
def test_what_it_can_not_use_is_named(option: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["text", "Hello", option]) == 1
    assert complaint in capsys.readouterr().err


def test_a_reader_that_has_enough_ends_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("cosydit.cli.text.print", Mock(side_effect=BrokenPipeError), raising=False)
    assert (main(["text", "Hello"]), capsys.readouterr().err) == (141, "")


def test_a_checkpoint_tells_languages_and_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoint.json").write_text('{"languages": ["en"]}', encoding="utf-8")
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm" / "speech_bounds.json").write_text('{"segment_letters": 60}', encoding="utf-8")
    text = "Room 5 is full of people now. Then we all went home again."
    assert main(["text", text, "--checkpoint", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "language en" in out and "segment 2" in out
