"""Guessing a text's language."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from gateway.text.language import LanguageGuesser, load_identifier, primary_language

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


@given(st.text(max_size=200))
def test_the_frugal_product_is_the_librarys_own(text: str) -> None:
    features = LIBRARY.instance2fv(text)
    np.testing.assert_allclose(FRUGAL.nb_classprobs(features), LIBRARY.nb_classprobs(features), rtol=1e-4, atol=1e-2)
