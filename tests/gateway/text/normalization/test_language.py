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
from tests.gateway.text.builders import CASES

ROOT = Path(__file__).parents[4]
GUESSER = LanguageGuesser()
LIBRARY, FRUGAL = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True), load_identifier()


@pytest.mark.parametrize(("text", "language"), CASES["languages"])
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


@pytest.mark.parametrize(("declared", "text", "language"), CASES["declared languages"])
def test_a_guess_is_one_of_the_declared_languages_in_their_script(
    declared: list[str], text: str, language: str | None
) -> None:
    assert LanguageGuesser(declared).guess(text) == language


@pytest.mark.parametrize(("language", "runs"), CASES["languages of numbers"])
def test_numbers_are_in_the_language_of_the_words_beside_them(language: str | None, runs: str) -> None:
    parts = re.split(r"(?:^| )(zh|en|ja|None)\|", runs)[1:]
    expected = [(run, None if name == "None" else name) for name, run in zip(parts[::2], parts[1::2], strict=True)]
    text = "".join(run for run, _ in expected)
    assert list(language_runs(text, language, {"zh", "en", "ja"})) == expected
    assert list(language_runs(text, language, {"ja"})) == [(text, language)]


@given(st.text(max_size=200))
def test_the_frugal_product_is_the_librarys_own(text: str) -> None:
    expected = LIBRARY.nb_classprobs(LIBRARY.instance2fv(text))
    np.testing.assert_allclose(FRUGAL.scores(text), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("declared", "text", "foreign"), CASES["foreign texts"])
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
