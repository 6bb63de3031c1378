"""Guessing a text's language."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from gateway.text.normalization.language import (
    DeclaredLanguages,
    LanguageGuesser,
    language_runs,
    load_identifier,
    primary_language,
)

ROOT = Path(__file__).parents[4]
GUESSER = LanguageGuesser()
LIBRARY, FRUGAL = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True), load_identifier()


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Hello there, how are you?", "en"),
        ("Das kostet 3,50 Euro und ist gut.", "de"),
        ("Bonjour, comment ça va ?", "fr"),
        ("今天天气很好", "zh"),
        ("我的iPhone 15 Pro很好用", "zh"),
        ("The word 你好 means hello in that language", "en"),
        ("東京へ行きます。", "ja"),
        ("我爱の中国，这是一个很好的地方", "zh"),
        ("안녕하세요", "ko"),
        ("Привет, как у тебя сегодня дела?", "ru"),
    ],
)
def test_a_sentence_tells_its_language(text: str, language: str) -> None:
    assert GUESSER.guess(text) == language


@pytest.mark.parametrize("text", ["", "100", "OK", "No.", "🙂", "3 > 2", "…"])
def test_nothing_is_said_of_what_tells_nothing(text: str) -> None:
    assert GUESSER.guess(text) is None


@pytest.mark.parametrize(
    ("tag", "language"), [("zh-CN", "zh"), ("yue", "zh"), ("pt_BR", "pt"), ("EN", "en"), ("nb-NO", "no"), ("iw", "he")]
)
def test_a_tag_names_one_language_whatever_its_region_and_age(tag: str, language: str) -> None:
    assert primary_language(tag) == language


@pytest.mark.parametrize(
    ("declared", "text", "language"),
    [
        (["en"], "40 litres/day", "en"),
        (["en"], "Dose: 2 tablets daily", "en"),
        (["zh", "en"], "Room 302.", "en"),
        (["zh", "en"], "Il y a 40 personnes", "en"),
        (["zh"], "Bonjour, comment ça va ?", "fr"),
        (["en", "de", "fr"], "Ich habe 3 Katzen.", "de"),
        (["en", "de", "fr"], "Room 302.", None),
        (["en", "ru"], "У меня 5 кошек.", "ru"),
        (["en"], "今天天气很好", "zh"),
    ],
)
def test_a_guess_is_one_of_the_declared_languages_in_their_script(
    declared: list[str], text: str, language: str | None
) -> None:
    assert LanguageGuesser(declared).guess(text) == language


@pytest.mark.parametrize(
    ("language", "runs"),
    [
        ("zh", "zh|花了$999。 en|The battery lasts 3 days. zh|很棒"),
        ("zh", "zh|他说  en|it opens in 5 minutes  zh|然后走了5次"),
        ("zh", "zh|我花了5  en|dollars and cents  zh|3个"),
        ("zh", "zh|用iPhone 15 Pro Max拍照，GPT-4很好"),
        ("zh", "zh|祝好。 en|Happy New Year 2025!"),
        ("ja", "ja|東京です。 en|It costs 5 dollars."),
        ("en", "en|The shop at  zh|朝阳路5号 en| opens at 5."),
        ("en", "en|It is new.  zh|花了$999。"),
        ("en", "en|The word 你好 means 2 things."),
        (None, "None|5 个"),
    ],
)
def test_numbers_are_in_the_language_of_the_words_beside_them(language: str | None, runs: str) -> None:
    parts = re.split(r"(?:^| )(zh|en|ja|None)\|", runs)[1:]
    expected = [(run, None if name == "None" else name) for name, run in zip(parts[::2], parts[1::2], strict=True)]
    text = "".join(run for run, _ in expected)
    assert list(language_runs(text, language, {"zh", "en", "ja"})) == expected
    assert list(language_runs(text, language, {"ja"})) == [(text, language)]


@given(st.text(max_size=200))
def test_the_frugal_product_is_the_librarys_own(text: str) -> None:
    features = LIBRARY.instance2fv(text)
    np.testing.assert_allclose(FRUGAL.nb_classprobs(features), LIBRARY.nb_classprobs(features), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("declared", "text", "foreign"),
    [
        pytest.param(["en"], "今天天气很好", "zh", id="another script"),
        pytest.param(["en"], "Привет", "ru", id="a single word in another script"),
        pytest.param(["en"], "Guten Tag, wie geht es Ihnen heute?", "de", id="the same script"),
        pytest.param(["en"], "Das ist gut", None, id="too short for the same script"),
        pytest.param(["en"], "Vladimir Putin met Angela Merkel.", None, id="names"),
        pytest.param(["en"], "The word 你好 means hello in that language", None, id="a foreign word"),
        pytest.param(["en"], "24/7, 100 %", None, id="no letters"),
        pytest.param(["zh", "en"], "我的iPhone 15 Pro很好用", None, id="a mixture of both"),
        pytest.param(["zh"], "東京へ行きます。", "ja", id="Japanese to a Chinese one"),
        pytest.param(["zh"], "The library closes at six on Fridays.", "en", id="English to a Chinese one"),
        pytest.param(["ru"], "Привіт, як у тебе справи сьогодні?", None, id="a relative in the same script"),
        pytest.param(["zh-CN", "yue"], "今天天气很好", None, id="regions don't matter"),
    ],
)
def test_a_text_in_no_declared_language_is_told(declared: list[str], text: str, foreign: str | None) -> None:
    assert DeclaredLanguages(declared, GUESSER.surely).foreign(text, None) == foreign


def test_the_callers_word_counts_more_than_the_guess() -> None:
    english = DeclaredLanguages(["en"], GUESSER.surely)
    assert english.foreign("Hello there.", "fr") == "fr"
    assert english.foreign("今天天气很好", "en") is None


def test_english_sentences_are_not_taken_for_anything_else() -> None:
    english = DeclaredLanguages(["en"], GUESSER.surely)
    lines = (ROOT / "benchmarks/lib/sentences.txt").read_text("utf-8").splitlines()
    beginnings = [" ".join(line.split()[:words]) for line in lines for words in (1, 2, 3, 4, 6, 8, 100)]
    assert [text for text in beginnings if english.foreign(text, None)] == []
