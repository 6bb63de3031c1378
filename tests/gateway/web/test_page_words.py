"""The page's words: each in English and in Chinese, none missing, none unused."""

from __future__ import annotations

import re

import pytest

from tests.gateway.web.page_files import DIRECTORY, read_page, scripts

HAN = re.compile("[\u4e00-\u9fff]")
SAME_IN_BOTH = {"otherLanguage"}
"""Shown in the language that the page can be switched to."""


def table(name: str) -> dict[str, str]:
    found = re.search(rf"const {name} = {{\n(.*?)\n}};", scripts()["words.js"], re.DOTALL)
    assert found is not None
    entries = re.findall(r'^  (\w+): "((?:[^"\\]|\\.)*)",$', found[1], re.MULTILINE)
    assert len(entries) == found[1].count("\n") + 1, "a line that is no entry"
    return dict(entries)


def named_words() -> set[str]:
    """Every key that the page and its scripts name."""
    others = "\n".join(script for name, script in scripts().items() if name != "words.js")
    quoted = set(re.findall(r'"(\w+)"', others + scripts()["words.js"].partition("const TABLES")[2]))
    return quoted | set(read_page().values("data-t"))


def test_both_languages_have_the_same_words_with_the_same_gaps() -> None:
    english, chinese = table("ENGLISH"), table("CHINESE")
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) >= set(re.findall(r"{\w+}", chinese[key])), key


def test_every_word_is_used_and_every_word_used_is_there() -> None:
    keys = set(table("ENGLISH"))
    assert keys <= named_words(), keys - named_words()
    assert set(read_page().values("data-t")) <= keys
    asked = {key for script in scripts().values() for key in re.findall(r'\b(?:t|say)\("(\w+)"', script)}
    assert len(asked) > 30 and asked <= keys


@pytest.mark.parametrize(("name", "is_chinese"), [("ENGLISH", False), ("CHINESE", True)])
def test_each_table_is_in_its_language(name: str, is_chinese: bool) -> None:
    words = {key: text for key, text in table(name).items() if key not in SAME_IN_BOTH}
    words = {key: text for key, text in words.items() if re.sub(r"{\w+}|\W", "", text)}
    assert {key for key, text in words.items() if bool(HAN.search(text)) != is_chinese} == set()


def test_the_pages_own_text_is_what_english_says() -> None:
    html = (DIRECTORY / "index.html").read_text("utf-8")
    english = table("ENGLISH")
    shown = re.findall(r'data-t="(\w+)">([^<]*)<', html)
    assert len(shown) > 40
    assert [(key, text) for key, text in shown if english[key] != text] == []
