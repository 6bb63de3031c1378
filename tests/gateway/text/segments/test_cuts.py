"""Where sentences end by a public list of rules and by our own, and what no cut may part."""

from __future__ import annotations

import pytest
from hypothesis import given

from gateway.text.breaks import BreakFinder, ended, full_stop
from gateway.text.sentences import SentencexRules
from gateway.text.splitter import INTERLEAVED_TEXT, LIVE_TEXT, WHOLE_TEXT, CutBounds, SplitSettings
from gateway.text.tags import InlineTags
from tests.gateway.text.builders import CASES, read_table, split_text, texts

EAGER = SplitSettings(first=CutBounds(1, 1000, 1000), later=CutBounds(1, 1000, 1000))
BAR = "‖"
LEAST_RIGHT = 44


GOLDEN = [(row[0], row[1], row[2:] == ["wrong"]) for row in read_table("data/golden_sentences.tsv")]


def finder(language: str) -> BreakFinder:
    return BreakFinder(SentencexRules(language, lambda _: None), InlineTags())


@pytest.mark.parametrize(("language", "sentences", "is_wrong"), GOLDEN, ids=lambda value: str(value)[:40])
def test_sentences_end_where_the_golden_rules_say(language: str, sentences: str, is_wrong: bool) -> None:
    """Source: the rules that pySBD's and Pragmatic Segmenter's tests hold."""
    text = sentences.replace(BAR + " ", "").replace(BAR, "")
    found = split_text(text, finder(language), EAGER)
    expected = [each.strip() for each in sentences.split(BAR)]
    assert ([segment.text.strip() for segment in found] == expected) is not is_wrong


def test_hardly_any_golden_rule_is_broken() -> None:
    assert sum(language == "en" and not is_wrong for language, _, is_wrong in GOLDEN) >= LEAST_RIGHT


LEADING = "They had never before gone down that long and quiet road which leads from the old mill to the "
WHOLES = (
    *("Dr. Smith", "approx. five million people", "e.g. lions", "est. 1990", "Mon. 5 May", "U.S. Government"),
    *("2500 kg", "12.5 million dollars", "10 000", "Chapter IV", "chapter iv", "Henry VIII", "New York NY 10001"),
    *("J. R. R. Tolkien", "9 a.m. in", "No. 10 Downing", "“Help! I need somebody, help”", "5 - 10"),
    *('"Stop! Or My Mom Will Shoot"', "《摔跤吧！爸爸》", "『君の名は。』", "Room 302", "iPhone 15 Pro"),
)  # fmt: skip


@pytest.mark.parametrize(
    "settings", [LIVE_TEXT, WHOLE_TEXT.capped(90), INTERLEAVED_TEXT], ids=["live", "whole", "woven"]
)
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("whole", WHOLES)
def test_no_cut_parts_what_is_read_as_one(whole: str, language: str, settings: SplitSettings) -> None:
    for skipped in range(0, len(LEADING), 31):
        text = f"{LEADING[skipped:]}{whole} {LEADING * 2}"
        segments = split_text(text, finder(language), settings)
        assert sum(whole in segment.text for segment in segments) == 1, [segment.text for segment in segments]


def test_an_item_of_a_list_stays_with_its_number() -> None:
    text = "Buy these: 1. Apples and figs 2. Pears 3. Plums"
    segments = split_text(text, finder("en"), EAGER)
    assert [segment.text for segment in segments] == ["Buy these: 1. Apples and figs ", "2. Pears ", "3. Plums"]


@pytest.mark.parametrize(("written", "spoken"), CASES["last segments"])
def test_the_last_segment_ends_in_a_stop(written: str, spoken: str) -> None:
    assert ended(written, None, is_last=True).text == spoken


@pytest.mark.parametrize("written", ["First, ", "Listen: ", "好，", "One; "])
def test_a_pause_within_a_text_stays(written: str) -> None:
    assert ended(written, None, is_last=False).text == written


@pytest.mark.parametrize(("text", "language", "stop"), CASES["full stops"])
def test_the_stop_is_the_languages(text: str, language: str | None, stop: str) -> None:
    assert full_stop(text, language) == stop


@given(texts)
def test_an_ended_text_is_covered_and_ending_it_again_changes_nothing(text: str) -> None:
    once = ended(text, None, is_last=True)
    assert (once.alignment.source_length, once.alignment.spoken_length) == (len(text), len(once.text))
    assert ended(once.text, None, is_last=True).text == once.text
