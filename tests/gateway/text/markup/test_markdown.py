"""What is written to be seen is not spoken: Markdown, HTML and SSML tags, emoji."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.text.markdown import MarkupReader
from gateway.text.tags import InlineTags
from tests.gateway.text.builders import CASES, texts

FORMS = CASES["markup pieces"]
marked_up = st.lists(st.sampled_from(FORMS) | st.text(max_size=3), max_size=40).map("".join)


def cleaned(text: str, size: int | None = None) -> str:
    reader = MarkupReader(InlineTags())
    pieces = [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    steps = [step for piece in pieces for step in reader.reading(piece)] + [*reader.finishing()]
    stretches = [stretch for step in steps for stretch in step]
    assert "".join(stretch.written for stretch in stretches) == text
    return "".join(stretch.spoken for stretch in stretches)


@pytest.mark.parametrize(("written", "spoken"), CASES["markup"])
def test_markup_goes_and_what_it_says_stays(written: str, spoken: str) -> None:
    assert cleaned(written) == spoken


@pytest.mark.parametrize("text", CASES["no markup"])
def test_what_is_no_markup_stays(text: str) -> None:
    assert cleaned(text) == text


@given(texts | marked_up, st.integers(1, 7))
@example("[^1][^1]", 1)
@example("As said[^1]: now", 1)
@example("[^1](there)", 2)
@example("> #  _. <", 1)
@example("- > 5", 1)
def test_a_text_is_cleaned_alike_however_it_is_divided(text: str, size: int) -> None:
    assert cleaned(text, size) == cleaned(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", [*FORMS, "<a ", "[a](b ", '<a b="', "a](", "*a", "![", "<!-", "<a b='c' ", "|-", "- - "]
)
def test_twenty_thousand_characters_are_read_in_linear_time(unit: str) -> None:
    began_s = time.process_time()
    cleaned(unit * (20_000 // len(unit)), 16)
    assert time.process_time() - began_s < 5, "0.3 s is usual; a quadratic reading takes minutes"
