"""Guessing a text's language."""

from __future__ import annotations

import pytest

from gateway.text.language import LanguageGuesser, primary_language

GUESSER = LanguageGuesser()


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
