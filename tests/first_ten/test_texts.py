"""What a newcomer pastes first, and what the gateway makes of it before the LLM sees it."""

from __future__ import annotations

import pytest

from gateway.text import WHOLE_TEXT, TextFrontEnd, TextOptions, load_text_front_end
from gateway.text.options import Normalization
from servicekit.checkpoint_file import CheckpointDeclaration

pytest.importorskip("wetext")


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    """As with the bundled voice, which declares English."""
    return load_text_front_end(declaration=CheckpointDeclaration(languages=("en",)))


def spoken(front_end: TextFrontEnd, text: str, options: TextOptions | None = None) -> str:
    """Return what is spoken of a text, segments joined."""
    stream = front_end.open(options or TextOptions(), WHOLE_TEXT)
    segments = [*stream.push(text), *stream.flush()]
    return "".join(stream.prepare(segment).text for segment in segments).strip()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Please bring the blue folder", "Please bring the blue folder."),
        ("hello", "hello."),
        ("你好", "你好。"),
        ("But I—", "But I."),
    ],
)
def test_a_text_without_a_stop_gets_one(front_end: TextFrontEnd, written: str, expected: str) -> None:
    assert spoken(front_end, written) == expected


@pytest.mark.parametrize(
    ("written", "words", "gone"),
    [
        ("# News\n\n- **one**\n- [two](https://a.example/b)", ["News", "one", "two"], ["#", "*", "http", "]"]),
        ("Great job 🎉 see `make test`", ["Great job", "make test"], ["🎉", "`"]),
        ("<p>Hello <b>there</b></p>", ["Hello", "there"], ["<", ">"]),
        ("Mail anna@example.com", ["anna at example dot com"], ["@"]),
    ],
)
def test_marks_that_are_made_to_be_seen_are_not_read(
    front_end: TextFrontEnd, written: str, words: list[str], gone: list[str]
) -> None:
    said = spoken(front_end, written)
    assert all(word in said for word in words), said
    assert not any(mark in said for mark in gone), said


def test_nothing_is_changed_where_it_is_asked_for(front_end: TextFrontEnd) -> None:
    options = TextOptions(normalization=Normalization.OFF)
    assert "**" in spoken(front_end, "**bold** 24/7", options)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("We are open 24/7.", "twenty four seven"),
        ("It leaves at 5:45 p.m.", "five forty five"),
        ("It costs $3.50.", "three dollars"),
        ("Dr. Smith lives on Oak Dr.", "Drive"),
        ("Use version 2.0.1.", "two point zero point one"),
    ],
)
def test_numbers_and_abbreviations_are_read_as_people_read_them(
    front_end: TextFrontEnd, written: str, expected: str
) -> None:
    assert expected.lower() in spoken(front_end, written).lower().replace("-", " ")
