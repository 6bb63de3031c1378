"""What holds for every text and every way to divide it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.text.segments.breaks import BreakFinder, spoken_length
from gateway.text.segments.splitter import LIVE_TEXT, CutBounds, IncrementalSplitter, Segment, SplitSettings, split_text
from gateway.text.tags import InlineTags
from tests.gateway.text.builders import CHAPTER, SHORT, CapriciousRules, finder, texts, texts_in_pieces

FINDER = finder()
CAPRICIOUS = finder(CapriciousRules())
ROOMY = SplitSettings(first=CutBounds(1, 1, 600), later=CutBounds(1, 1, 600))
TAG = re.compile(InlineTags().pattern)
any_settings = st.sampled_from([SHORT, LIVE_TEXT])


def push_all(pieces: list[str], settings: SplitSettings, finder: BreakFinder = FINDER) -> list[Segment]:
    splitter = IncrementalSplitter(finder, settings)
    return [segment for piece in pieces for segment in splitter.push(piece)] + splitter.flush()


@given(texts_in_pieces(), any_settings)
def test_any_division_into_pieces_gives_the_segments_of_the_whole_text(
    pieces: list[str], settings: SplitSettings
) -> None:
    assert push_all(pieces, settings) == split_text("".join(pieces), FINDER, settings)


@given(texts, any_settings)
def test_letter_by_letter_gives_the_segments_of_the_whole_text_whatever_the_rules(
    text: str, settings: SplitSettings
) -> None:
    assert push_all(list(text), settings, CAPRICIOUS) == split_text(text, CAPRICIOUS, settings)


def test_the_chapter_of_hard_cases_gives_the_same_segments_at_every_division_in_two() -> None:
    whole = split_text(CHAPTER, FINDER, SHORT)
    assert len(whole) > 8
    for at in range(len(CHAPTER)):
        assert push_all([CHAPTER[:at], CHAPTER[at:]], SHORT) == whole


@given(texts, any_settings)
def test_no_character_is_lost_or_doubled_and_positions_are_the_texts_own(text: str, settings: SplitSettings) -> None:
    segments = split_text(text, FINDER, settings)
    assert "".join(segment.text for segment in segments) == text
    assert all(segment.text and text[segment.start : segment.end] == segment.text for segment in segments)


@given(texts_in_pieces())
def test_flushes_anywhere_lose_no_character(pieces: list[str]) -> None:
    splitter = IncrementalSplitter(FINDER, SHORT)
    segments = []
    for piece in pieces:
        segments += [*splitter.push(piece), *splitter.flush()]
        assert splitter.pending_characters == 0
    assert "".join(segment.text for segment in segments) == "".join(pieces)
    assert [segment.start for segment in segments] == [0, *(segment.end for segment in segments)][: len(segments)]


@given(texts_in_pieces(), any_settings)
def test_segments_and_what_is_pending_are_bounded(pieces: list[str], settings: SplitSettings) -> None:
    splitter = IncrementalSplitter(FINDER, settings)
    longest = max(settings.first.max_length, settings.later.max_length)
    segments = []
    for piece in pieces:
        segments += splitter.push(piece)
        assert splitter.pending_characters <= longest + FINDER.longest_chunk
    assert all(spoken_length(segment.text) <= longest for segment in [*segments, *splitter.flush()])


@given(texts, any_settings)
def test_no_tag_is_cut(text: str, settings: SplitSettings) -> None:
    segments = split_text(text, FINDER, settings)
    assert [tag for segment in segments for tag in TAG.findall(segment.text)] == TAG.findall(text)


@given(texts)
def test_every_segment_but_the_last_has_something_to_say_unless_a_bound_cut_it(text: str) -> None:
    for segment in split_text(text, FINDER, ROOMY)[:-1]:
        is_cut_by_bound = spoken_length(segment.text) > ROOMY.later.max_length - FINDER.longest_chunk
        assert FINDER.tags.is_speakable(segment.text) or is_cut_by_bound
