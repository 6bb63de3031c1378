"""The operator's dictionaries: files, names, which of them a text gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigError, LexiconNotFoundError
from gateway.lexicons import LexiconBook, load_lexicons
from gateway.text import Normalization, TextOptions
from gateway.text.aliases import apply_lexicons


def operator_dir(path: Path) -> Path:
    (path / "default.json").write_text('{"rules": {"SQL": "sequel"}}')
    (path / "tech.pls").write_text(
        "<lexicon><lexeme><grapheme>SQL</grapheme><alias>squirrel</alias></lexeme></lexicon>"
    )
    (path / "notes.txt").write_text("not a dictionary")
    return path


def spoken(book: LexiconBook, *names: str, normalization: Normalization = Normalization.ON) -> str:
    options = TextOptions(None, normalization, lexicons=names)
    return apply_lexicons("SQL on Xiaomi", book.lexicons_for(options)).text


def test_the_default_dictionary_comes_behind_those_that_are_asked_for(tmp_path: Path) -> None:
    book = load_lexicons(operator_dir(tmp_path))
    assert spoken(book) == "sequel on Xiaomi"
    assert spoken(book, "tech") == "squirrel on Xiaomi"
    assert spoken(book, normalization=Normalization.OFF) == "SQL on Xiaomi", "read as it is written"
    assert spoken(book, "tech", normalization=Normalization.OFF) == "squirrel on Xiaomi", "asked for by name"
    with pytest.raises(LexiconNotFoundError, match="this server has default, tech"):
        spoken(book, "../notes")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "{", "a.json can't be read"),
        ("a.pls", "<lexicon>", "line 1, column 9"),
        ("default.pls", "<lexicon/>", "two dictionaries 'default'"),
    ],
)
def test_a_file_of_the_operator_that_can_not_be_read_stops_the_start(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (operator_dir(tmp_path) / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_lexicons(tmp_path)
    with pytest.raises(ConfigError, match="is not there"):
        load_lexicons(tmp_path / "missing")
