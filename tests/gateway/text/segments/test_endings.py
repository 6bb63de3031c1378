"""Every segment ends in a mark that speech LLMs know for an end."""

from __future__ import annotations

import pytest
from hypothesis import given

from gateway.text.segments.endings import ended, full_stop
from tests.gateway.text.builders import texts


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Please bring the blue folder", "Please bring the blue folder."),
        ("Please bring the blue folder. ", "Please bring the blue folder. "),
        ("Really?!", "Really?!"),
        ("Yes\n\n", "Yes.\n\n"),
        ('He said "Yes."', 'He said "Yes".'),
        ("He said “yes”", "He said “yes”."),
        ("(as we saw.)", "(as we saw)."),
        ("But I—", "But I."),
        ("But I - ", "But I. "),
        ("Well...", "Well."),
        ("Well…", "Well."),
        ("First,", "First."),
        ("Dear John,\n\n", "Dear John.\n\n"),
        ("<strong>Now</strong>", "<strong>Now</strong>."),
        ("ha [laughter]", "ha [laughter]."),
        ("the dogs'", "the dogs'."),
        ("你好", "你好。"),
        ("你好，", "你好。"),
        ("他说：“好的。”", "他说：“好的”。"),
        ("see [1]", "see [1]."),
        (" … ", " … "),
        ("", ""),
        ("A ", "A. "),
    ],
)
def test_the_last_segment_ends_in_a_stop(written: str, spoken: str) -> None:
    assert ended(written, None, is_last=True).text == spoken


@pytest.mark.parametrize("written", ["First, ", "Listen: ", "好，", "One; "])
def test_a_pause_within_a_text_stays(written: str) -> None:
    assert ended(written, None, is_last=False).text == written


@pytest.mark.parametrize(
    ("text", "language", "stop"),
    [
        ("नमस्ते", "hi", "।"),
        ("hello", "hi", "."),
        ("مرحبا", "ar", "."),
        ("好", None, "。"),
        ("さん", "ja", "。"),
        ("Ja", "de", "."),
    ],
)
def test_the_stop_is_the_languages(text: str, language: str | None, stop: str) -> None:
    assert full_stop(text, language) == stop


@given(texts)
def test_an_ended_text_is_covered_and_ending_it_again_changes_nothing(text: str) -> None:
    once = ended(text, None, is_last=True)
    assert (once.alignment.source_length, once.alignment.spoken_length) == (len(text), len(once.text))
    assert ended(once.text, None, is_last=True).text == once.text
