"""Positions of normalised text in the original and back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.alignment import Alignment, SpokenStretch, align

spans = st.builds(SpokenStretch, st.integers(0, 6), st.integers(0, 6))
alignments = st.lists(spans, max_size=12).map(lambda drawn: Alignment(tuple(drawn)))
words = st.lists(st.sampled_from(["It", "costs", "5", "five", "你", "3.50", "a", " ", "\n", ", "]), max_size=40).map(
    "".join
)


def test_words_in_common_keep_their_places() -> None:
    source, spoken = "It costs $3.50 today.", "It costs three point five dollars today."
    alignment = align(source, spoken)
    for word in ("It", "costs", "today."):
        assert alignment.source_at(spoken.index(word)) == source.index(word)
        assert alignment.spoken_at(source.index(word)) == spoken.index(word)
    assert source.index("$") < alignment.source_at(spoken.index("point")) < source.index(" today")


def test_chinese_characters_in_common_keep_their_places() -> None:
    source, spoken = "今天是2024年5月。", "今天是二零二四年五月。"
    alignment = align(source, spoken)
    for character in "今天是年月。":
        assert alignment.source_at(spoken.index(character)) == source.index(character)


@pytest.mark.slow
@given(words, words)
def test_an_alignment_covers_both_texts(source: str, spoken: str) -> None:
    alignment = align(source, spoken)
    assert (alignment.source_length, alignment.spoken_length) == (len(source), len(spoken))


@given(alignments)
def test_both_maps_are_monotone_and_map_the_end_to_the_end(alignment: Alignment) -> None:
    forth = [alignment.source_at(position) for position in range(alignment.spoken_length + 1)]
    back = [alignment.spoken_at(position) for position in range(alignment.source_length + 1)]
    assert all(left <= right for left, right in [*pairwise(forth), *pairwise(back)])
    assert forth[-1] == alignment.source_length
    assert back[-1] == alignment.spoken_length


@given(st.text(max_size=40))
def test_a_text_aligned_with_itself_maps_every_position_to_itself(text: str) -> None:
    alignment = align(text, text)
    assert [alignment.source_at(position) for position in range(len(text) + 1)] == list(range(len(text) + 1))


@given(alignments, alignments)
def test_joined_alignments_map_as_their_parts_do(first: Alignment, second: Alignment) -> None:
    joined = Alignment.joined([first, second])
    for position in range(second.spoken_length):
        mapped = joined.source_at(first.spoken_length + position)
        assert mapped == first.source_length + second.source_at(position)


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_out_of_range_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match=rf"got position {position}, expected 0 to 2"):
        Alignment.identity(2).source_at(position)
