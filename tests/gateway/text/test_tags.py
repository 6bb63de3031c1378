"""Inline tags: which they are, where they are, and that other markup is text."""

from __future__ import annotations

import pytest
from hypothesis import given

from gateway.errors import ConfigError
from gateway.text.tags import InlineTags, TextPart
from llm_service.huggingface_layout import INLINE_TOKENS
from llm_service.vocab import INLINE_TAGS, contains_protected_token
from tests.gateway.text.builders import texts

TAGS = InlineTags()


def test_the_tags_are_all_those_of_the_models_vocabulary_that_a_user_may_write() -> None:
    assert [token for token in INLINE_TOKENS if not contains_protected_token(token)] == list(INLINE_TAGS)


def test_a_text_comes_apart_into_tags_and_text() -> None:
    parts = list(TAGS.parts("[breath]Hi <strong>you</strong>[1]"))
    expected = [("[breath]", True), ("Hi ", False), ("<strong>", True), ("you", False), ("</strong>", True)]
    assert parts == [TextPart(*part) for part in [*expected, ("[1]", False)]]


@pytest.mark.parametrize("text", ["[1]", "a < b", "<3", "[Breath]", "[ breath ]", "<break time='1s'/>", "[link](url)"])
def test_other_markup_is_text(text: str) -> None:
    assert list(TAGS.parts(text)) == [TextPart(text, is_tag=False)]


@pytest.mark.parametrize(
    ("text", "start"), [("a [brea", 2), ("<", 0), ("x</stro", 1), ("[lau<", 4), ("<lau[1", 6), ("a", 1)]
)
def test_the_beginning_of_a_tag_at_the_end_of_a_text_is_found(text: str, start: int) -> None:
    assert TAGS.unfinished_from(text) == start


@pytest.mark.parametrize(
    ("text", "is_speakable"),
    [("Hi", True), ("[breath]", True), ("5", True), ("你", True), ("<strong> … </strong>!", False), (" \n🙂", False)],
)
def test_only_letters_digits_and_sounds_can_be_spoken(text: str, is_speakable: bool) -> None:
    assert TAGS.is_speakable(text) is is_speakable


@given(texts)
def test_parts_joined_are_the_text(text: str) -> None:
    assert "".join(part.text for part in TAGS.parts(text)) == text


def test_a_model_without_tags_has_only_text() -> None:
    none = InlineTags(())
    assert list(none.parts("[breath] Hi")) == [TextPart("[breath] Hi", is_tag=False)]
    assert none.unfinished_from("Hi [brea") == len("Hi [brea")


@pytest.mark.parametrize("tag", ["breath", "[a b]", "<a<b>", "[]", ""])
def test_a_tag_of_another_form_is_refused(tag: str) -> None:
    with pytest.raises(ConfigError, match="expected a form such as"):
        InlineTags((tag,))
