"""How texts are cut into segments, and what holds for any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.text.breaks import Break, BreakFinder, spoken_length
from gateway.text.sentences import SentencexRules
from gateway.text.splitter import (
    LIVE_TEXT,
    WHOLE_TEXT,
    CutBounds,
    IncrementalSplitter,
    Segment,
    SplitSettings,
)
from gateway.text.tags import InlineTags
from llm_service.prompt import MAX_SPEECH_TOKENS, generation_bounds
from tests.gateway.text.builders import CASES, CHAPTER, SHORT, finder, split_text, texts, texts_in_pieces

EAGER = SplitSettings(first=CutBounds(1, 160, 160), later=CutBounds(1, 160, 160))
"""Cuts after every sentence."""
CHAPTER_CHARACTERS = 50_000


def sentences(text: str) -> list[str]:
    return [segment.text for segment in split_text(text, finder(), EAGER)]


@pytest.mark.parametrize("expected", CASES["sentences"])
def test_sentences_end_where_a_reader_would_end_them(expected: list[str]) -> None:
    assert sentences("".join(expected)) == expected


def test_a_german_ordinal_does_not_end_a_sentence() -> None:
    german = BreakFinder(SentencexRules("de", lambda _: None), InlineTags())
    text = "Am 5. Mai kam er. Gut."
    splitter = IncrementalSplitter(german, EAGER)
    segments = [segment for letter in text for segment in splitter.push(letter)] + splitter.flush()
    assert [segment.text for segment in segments] == ["Am 5. Mai kam er. ", "Gut."]
    assert segments == split_text(text, german, EAGER)


def test_the_first_segment_of_live_text_ends_at_a_clause_and_later_ones_are_longer() -> None:
    text = "When the rain finally stopped, everyone came out. " * 8
    first, *later = split_text(text, finder(), LIVE_TEXT)
    assert first.text == "When the rain finally stopped, "
    assert all(spoken_length(segment.text) >= LIVE_TEXT.later.min_sentence for segment in later[:-1])


@pytest.mark.parametrize("letters", [None, 200])
def test_a_sentence_that_fits_is_whole_and_a_longer_one_is_cut_behind_its_strongest_last_mark(
    letters: int | None,
) -> None:
    clause = "and then they all went on along the river until it was dark, "
    sentences = [f"One, {clause * 2}so they slept. ", f"Two, {clause * 4}so they slept."]
    cut = split_text("".join(sentences), finder(), WHOLE_TEXT.capped(letters))
    assert [segment.text for segment in cut] == [sentences[0], f"Two, {clause * 3}", f"{clause}so they slept."]


def test_a_segment_leaves_as_soon_as_the_character_behind_it_is_there() -> None:
    splitter = IncrementalSplitter(finder(), EAGER)
    assert splitter.push("Hello there. ") == []
    assert splitter.push("H") == [Segment("Hello there. ", 0)]


def test_a_flush_gives_all_and_the_next_segment_is_a_first_one() -> None:
    splitter = IncrementalSplitter(finder(), LIVE_TEXT)
    assert splitter.push("One mo") == []
    assert splitter.flush() == [Segment("One mo", 0)]
    assert splitter.push("When the rain finally stopped, we went") == [Segment("When the rain finally stopped, ", 6)]


def test_text_without_a_good_place_is_cut_between_words_and_else_between_letters() -> None:
    words = split_text("word " * 100, finder(), SHORT)
    assert all(segment.text.endswith("word ") for segment in words)
    letters = split_text("x" * 1000, finder(), SHORT)
    assert max(len(segment.text) for segment in letters) <= SHORT.later.max_length


def test_a_family_of_joined_emoji_and_an_accented_letter_stay_whole() -> None:
    for whole in ("👩‍👩‍👧", "e\u0301\u0302"):
        segments = split_text(whole * 200, finder(), SHORT)
        assert len(segments) > 1
        assert all(segment.text.replace(whole, "") == "" for segment in segments)


def test_a_pair_of_tags_is_cut_only_if_it_is_longer_than_a_segment() -> None:
    pair = "<strong>One. Two, three. Four.</strong> "
    texts = [segment.text for segment in split_text(f"Zero. {pair}Five. " * 5, finder(), SHORT)]
    assert all(text.count("<strong>") == text.count("</strong>") for text in texts)
    before, cut_pair = split_text("red tan green " * 6 + "<strong>" + "four, five " * 12 + "</strong>", finder(), SHORT)
    assert before.text.endswith("green ")
    assert cut_pair.text.startswith("<strong>four")
    long_pair = split_text("<strong>" + "One, two. " * 50 + "</strong> End.", finder(), SHORT)
    assert all(spoken_length(segment.text) <= SHORT.later.max_length for segment in long_pair)


def test_a_pair_that_is_never_closed_holds_up_one_segment_only() -> None:
    segments = split_text("<strong>" + "One two three four five. " * 30, finder(), SHORT)
    assert segments[0].text.endswith(". ")
    assert all(len(segment.text) < SHORT.later.max_length / 2 for segment in segments[1:])


class CountingFinder(BreakFinder):
    """Counts its work."""

    def __init__(self) -> None:
        super().__init__(SentencexRules(None, lambda _: None), InlineTags())
        self.calls = 0

    def next_break(self, text: str, at: int, *, is_complete: bool) -> Break | None:
        self.calls += 1
        return super().next_break(text, at, is_complete=is_complete)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(CHAPTER, id="hard-cases"),
        pytest.param("It was a dark night, and it rained in torrents, but at times it stopped. ", id="prose"),
        pytest.param("Yes. " + "x" * 235, id="a-sentence-before-an-endless-word"),
        pytest.param("Yes, <strong>" + "so on " * 60, id="pairs-never-closed"),
        pytest.param("今天天气很好我们去公园吧", id="no-punctuation"),
        pytest.param(" \n", id="blank"),
    ],
)
@pytest.mark.parametrize("piece_characters", [1, CHAPTER_CHARACTERS])
def test_a_chapter_is_read_in_linear_work_and_bounded_memory(line: str, piece_characters: int) -> None:
    chapter = (line * (CHAPTER_CHARACTERS // len(line) + 1))[:CHAPTER_CHARACTERS]
    counting, cut = CountingFinder(), 0
    splitter = IncrementalSplitter(counting, WHOLE_TEXT)
    for at in range(0, len(chapter), piece_characters):
        cut += sum(len(segment.text) for segment in splitter.push(chapter[at : at + piece_characters]))
        assert at + piece_characters - cut <= WHOLE_TEXT.later.max_length + counting.longest_chunk
    # One call for each piece, and few for each chunk; a call looks at a bounded piece of text.
    assert counting.calls <= 3 * CHAPTER_CHARACTERS


def test_default_bounds_fit_the_llm_even_for_a_script_of_four_tokens_a_character() -> None:
    longest = max(LIVE_TEXT.first.max_length, LIVE_TEXT.later.max_length, WHOLE_TEXT.first.max_length)
    assert generation_bounds(4 * longest).min_tokens <= MAX_SPEECH_TOKENS


@pytest.mark.parametrize("bounds", [(0, 1, 200), (5, 4, 200), (5, 300, 200)])
def test_bounds_that_contradict_each_other_are_refused(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="expected 1 <= min_sentence"):
        CutBounds(*bounds)


def test_a_bound_too_short_for_the_look_ahead_is_refused() -> None:
    tiny = CutBounds(1, 1, 20)
    with pytest.raises(ConfigError, match=r"got max_length 20, expected \d+ letters or more"):
        IncrementalSplitter(finder(), SplitSettings(tiny, tiny))


def test_capped_bounds_let_sentences_end_segments_sooner_and_never_later() -> None:
    assert WHOLE_TEXT.capped(None) is WHOLE_TEXT
    capped = WHOLE_TEXT.capped(90)
    assert (capped.later.min_sentence, capped.later.min_clause, capped.later.max_length) == (30, 90, 160)
    assert LIVE_TEXT.capped(1000) == LIVE_TEXT


FINDER = finder()
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
def test_no_character_is_lost_or_doubled_and_positions_are_the_texts_own(text: str, settings: SplitSettings) -> None:
    segments = split_text(text, FINDER, settings)
    assert "".join(segment.text for segment in segments) == text
    assert all(segment.text and text[segment.start : segment.end] == segment.text for segment in segments)


@given(texts_in_pieces(), any_settings)
def test_segments_and_what_is_pending_are_bounded(pieces: list[str], settings: SplitSettings) -> None:
    splitter = IncrementalSplitter(FINDER, settings)
    longest = max(settings.first.max_length, settings.later.max_length)
    segments, pending = [], 0
    for piece in pieces:
        segments += (cut := splitter.push(piece))
        pending += len(piece) - sum(len(segment.text) for segment in cut)
        assert pending <= longest + FINDER.longest_chunk
    assert all(spoken_length(segment.text) <= longest for segment in [*segments, *splitter.flush()])


@given(texts)
def test_every_segment_but_the_last_has_something_to_say_unless_a_bound_cut_it(text: str) -> None:
    for segment in split_text(text, FINDER, ROOMY)[:-1]:
        is_cut_by_bound = spoken_length(segment.text) > ROOMY.later.max_length - FINDER.longest_chunk
        assert FINDER.tags.is_speakable(segment.text) or is_cut_by_bound
