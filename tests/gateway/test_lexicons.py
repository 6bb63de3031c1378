"""Dictionaries: the forms of their files, and which of the operator's a text gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.errors import ConfigError, InvalidRequestError, LexiconNotFoundError, UnsupportedOptionError
from gateway.lexicons import MAX_RULES, LexiconBook, load_lexicons, rules_of_json, rules_of_pls
from gateway.text import Normalization, TextOptions
from gateway.text.aliases import AliasRule, apply_lexicons

HEAD = '<lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="ipa" xml:lang="en">'
PLS = f"""<?xml version="1.0" encoding="UTF-8"?>
{HEAD}
  <meta name="author" content="me"/>
  <metadata><x:note xmlns:x="urn:x">anything <x:deep/></x:note></metadata>
  <lexeme><grapheme>Xiaomi</grapheme><grapheme>XIAOMI</grapheme><alias>show me</alias></lexeme>
  <lexeme><grapheme>R&amp;D</grapheme><phoneme>x</phoneme><alias> research
      and development</alias></lexeme>
</lexicon>
"""


def test_json_has_a_long_and_a_short_form() -> None:
    short = rules_of_json('{"rules": {"Xiaomi": "show me", "小米": "xiao mi"}}')
    assert short == (AliasRule("Xiaomi", "show me"), AliasRule("小米", "xiao mi"))
    long = {"string_to_replace": "SQL", "alias": "sequel", "case_sensitive": False, "word_boundaries": False}
    rules = rules_of_json(json.dumps({"rules": [long]}))
    assert rules == (AliasRule("SQL", "sequel", False, False),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "expected rules as JSON"),
        ('{"words": {}}', "expected rules as JSON"),
        ('{"rules": [{"alias": "a"}]}', "expected rules as JSON"),
        ('{"rules": [{"string_to_replace": "a"}]}', "has no alias"),
        ('{"rules": {"": "a"}}', "expected text without blanks"),
    ],
)
def test_json_that_is_no_dictionary_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        rules_of_json(text)


def test_phonemes_are_refused_with_a_word_on_who_reads_them() -> None:
    phoneme = {"type": "phoneme", "string_to_replace": "tomato", "phoneme": "təˈmeɪtoʊ", "alphabet": "ipa"}
    with pytest.raises(UnsupportedOptionError, match="CosyVoice3"):
        rules_of_json(json.dumps({"rules": [phoneme]}))
    with pytest.raises(InvalidRequestError, match=r"'a': phonemes can't be spoken.*CosyVoice3"):
        rules_of_pls(f"{HEAD}\n<lexeme><grapheme>a</grapheme><phoneme>x</phoneme></lexeme></lexicon>")


def test_pls_is_read() -> None:
    assert rules_of_pls(PLS) == (
        AliasRule("Xiaomi", "show me"),
        AliasRule("XIAOMI", "show me"),
        AliasRule("R&D", "research and development"),
    )


FILE = (
    '<!DOCTYPE l [<!ENTITY f SYSTEM "file:///etc/passwd">]>'
    f"{HEAD}<lexeme><grapheme>a</grapheme><alias>&f;</alias></lexeme></lexicon>"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no element found"),
        ("no xml", "line 1, column 0"),
        (f"{HEAD}\n<lexeme>", "no element found: line 2, column 8"),
        (f"{HEAD}<lexeme></lexeme></lexicon>", "has no <grapheme>"),
        (f"{HEAD}<lexeme><grapheme>a</grapheme></lexeme></lexicon>", "'a': its <lexeme> has no <alias>"),
        (f"{HEAD}<b/></lexicon>", "<b> is not expected in <lexicon>"),
        ("<speak/>", "begins with <speak>"),
        (FILE, "undefined entity &f;"),
        (f"{HEAD}<lexeme><grapheme>&a;</grapheme></lexeme></lexicon>", "undefined entity"),
    ],
)
def test_a_file_that_is_no_pls_is_refused_with_its_reason(text: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match="PLS file can't be read") as refused:
        rules_of_pls(text)
    assert told in str(refused.value)


def test_a_dictionary_has_bounds() -> None:
    with pytest.raises(InvalidRequestError, match="more than 5000 rules"):
        rules_of_json(json.dumps({"rules": {f"word{number}": "a" for number in range(MAX_RULES + 1)}}))


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
