"""`say-as` in English and Chinese."""

from __future__ import annotations

import pytest

from gateway.text.alignment import Normalizer
from gateway.text.chinese import ChineseNormalizer
from gateway.text.normalization.say_as import NotReadableError, said_as
from gateway.text.normalization.wetext_normalizer import WeTextNormalizer

pytest.importorskip("wetext", reason="the text extra is not installed")

NORMALIZERS: dict[str, Normalizer] = {"en": WeTextNormalizer("en"), "zh": ChineseNormalizer()}


def said(text: str, kind: str, language: str, form: str | None = None) -> str:
    return said_as(text, kind, form, language, lambda plain: NORMALIZERS[language].normalize(plain).text)


@pytest.mark.parametrize(
    ("kind", "text", "english", "chinese"),
    [
        ("digits", "4207", "four two zero seven", "四二零七"),
        ("characters", "AB3", "A B three", "A B 三"),
        ("spell-out", "a-b", "A B", "A B"),
        ("cardinal", "1,234", "one thousand two hundred and thirty four", "一千二百三十四"),
        ("cardinal", "-5", "minus five", "负五"),
        ("ordinal", "21", "twenty first", "第二十一"),
        ("ordinal", "3rd", "third", "第三"),
        ("telephone", "+86 110-119", "plus eight six, one one zero, one one nine", "加八六，幺幺零，幺幺九"),
        ("time", "14:30", "fourteen thirty", "十四点三十分"),
        ("time", "2:05 p.m.", "two oh five P M", "下午两点五分"),
        ("time", "8:00am", "eight A M", "上午八点整"),
        ("currency", "$3.50", "three dollars and fifty cents", "三点五零美元"),
        ("currency", "20 EUR", "twenty euros", "二十欧元"),
        ("currency", "CNY5", "five yuan", "五元"),
    ],
)
def test_a_text_is_read_as_what_it_is_said_to_be(kind: str, text: str, english: str, chinese: str) -> None:
    assert said(text, kind, "en").replace("two hundred thirty", "two hundred and thirty") == english
    assert said(text, kind, "zh") == chinese


@pytest.mark.parametrize(
    ("form", "text", "english", "chinese"),
    [
        ("mdy", "5/3/2024", "May third, twenty twenty four", "二零二四年五月三日"),
        ("dmy", "3.5.2024", "May third, twenty twenty four", "二零二四年五月三日"),
        ("ymd", "2024-05-03", "May third, twenty twenty four", "二零二四年五月三日"),
        ("md", "5/3", "May third", "五月三日"),
        ("my", "5/2024", "May twenty twenty four", "二零二四年五月"),
        ("y", "1999", "nineteen ninety nine", "一九九九年"),
    ],
)
def test_a_date_is_read_by_its_format(form: str, text: str, english: str, chinese: str) -> None:
    assert (said(text, "date", "en", form), said(text, "date", "zh", form)) == (english, chinese)


@pytest.mark.parametrize(
    ("kind", "text", "form"),
    [
        ("digits", "four", None),
        ("characters", "-", None),
        ("cardinal", "1.2.3", None),
        ("ordinal", "first", None),
        ("telephone", "call me", None),
        ("date", "13/13/2024", "mdy"),
        ("date", "5/3", "mdy"),
        ("date", "5/3", "xyz"),
        ("time", "25:61", None),
        ("currency", "3.50", None),
        ("currency", "$3 EUR", None),
        ("poem", "a", None),
        ("digits", "", None),
    ],
)
def test_what_can_not_be_read_so_is_refused(kind: str, text: str, form: str | None) -> None:
    for language in ("en", "zh"):
        with pytest.raises(NotReadableError):
            said(text, kind, language, form)
