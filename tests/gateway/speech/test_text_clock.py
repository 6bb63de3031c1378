"""The text clock: when each character is said, and words out of the times of characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.speech.request import SpokenSpan
from gateway.speech.text_clock import CharacterTime, TextClock, WordGatherer, WordTime
from gateway.text import Segment, SpokenSegment
from gateway.text.alignment import Alignment, SpokenStretch, unchanged


def span(text: str, start: int, first_token: int, tokens: int, is_complete: bool = True) -> SpokenSpan:
    segment = SpokenSegment(Segment(text, start), text, unchanged(text).alignment, "en", True)
    return SpokenSpan(segment, first_token, tokens, is_complete)


def test_characters_share_their_segments_tokens_evenly() -> None:
    read = TextClock([span("abcd", 0, 0, 50), span("ef", 4, 50, 25)]).read(3.0)
    assert [(each.character, each.position, each.end_s) for each in read] == [
        ("a", 0, 0.5),
        ("b", 1, 1.0),
        ("c", 2, 1.5),
        ("d", 3, 2.0),
        ("e", 4, 2.5),
        ("f", 5, 3.0),
    ]


def test_only_what_was_heard_is_read_and_nothing_twice() -> None:
    clock = TextClock([span("abcd", 10, 0, 100)])
    assert [each.character for each in clock.read(2.0)] == ["a", "b"]
    assert clock.position == 12
    assert clock.read(2.0) == []
    assert [each.character for each in clock.read(9.0)] == ["c", "d"]
    assert clock.position == 14


def test_normalised_text_is_told_in_the_callers_characters() -> None:
    alignment = Alignment((SpokenStretch(2, 2), SpokenStretch(1, 8)))
    segment = SpokenSegment(Segment("a 3", 0), "a threexxx", alignment, "en", True)
    read = TextClock([SpokenSpan(segment, 0, 250, True)]).read(10.0)
    assert [(each.character, each.end_s) for each in read] == [("a", 1.0), (" ", 2.0), ("3", 10.0)]


def test_a_segment_under_way_is_estimated_and_never_goes_back() -> None:
    under_way = span("a" * 100, 0, 0, 10, is_complete=False)
    clock = TextClock([under_way])
    early = clock.read(3.0)
    assert 0 < len(early) < 100
    under_way.tokens, under_way.is_complete = 40, True
    late = clock.read(1.6)
    assert len(early) + len(late) == 100
    assert_is_monotone([*early, *late])


def test_the_end_reads_all_that_is_left_within_the_audio() -> None:
    clock = TextClock([span("ab", 0, 0, 50), span("cd", 2, 50, 5, is_complete=False)])
    read = clock.read(2.2, is_over=True)
    assert "".join(each.character for each in read) == "abcd"
    assert read[-1].end_s <= 2.2
    assert clock.position == 4


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 60)), min_size=1, max_size=5),
    st.lists(st.floats(0, 12), max_size=8),
)
def test_every_character_is_read_once_in_order(parts: list[tuple[str, int]], heard: list[float]) -> None:
    spans, start, token = [], 0, 0
    for text, tokens in parts:
        spans.append(span(text, start, token, tokens))
        start, token = start + len(text), token + tokens
    clock = TextClock(spans)
    read = [each for audio_s in sorted(heard) for each in clock.read(audio_s)]
    read += clock.read(token / 25, is_over=True)
    assert [each.position for each in read] == list(range(start))
    assert_is_monotone(read)


def assert_is_monotone(read: list[CharacterTime]) -> None:
    times = [time for each in read for time in (each.start_s, each.end_s)]
    assert times == sorted(times)


def times_of(text: str) -> list[CharacterTime]:
    return [CharacterTime(character, at, at / 10, (at + 1) / 10) for at, character in enumerate(text)]


def words_of(text: str, piece: int) -> list[WordTime]:
    gatherer, times = WordGatherer(), times_of(text)
    words = [word for at in range(0, len(times), piece) for word in gatherer.push(times[at : at + piece])]
    return words + gatherer.finish()


@pytest.mark.parametrize("piece", [1, 2, 100])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("Hello, my  world! ", ["Hello,", "my", "world!"], id="blanks and punctuation"),
        pytest.param("你好，世界。GPU很快", ["你", "好，", "世", "界。", "GPU", "很", "快"], id="Chinese"),
        pytest.param("한국어 문장", ["한국어", "문장"], id="Korean has blanks"),
        pytest.param("  ", [], id="blank"),
    ],
)
def test_words_are_those_of_the_script_however_the_characters_come(text: str, words: list[str], piece: int) -> None:
    assert [word.word for word in words_of(text, piece)] == words


def test_a_word_lasts_from_its_first_character_to_its_last() -> None:
    assert words_of("ab cd", 5) == [WordTime("ab", 0.0, 0.2), WordTime("cd", 0.3, 0.5)]
