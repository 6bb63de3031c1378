"""One character for each meaning, and the way back to what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.alignment import align, unchanged
from gateway.text.cleaning import CleaningReader, cleaned
from gateway.text.markdown import MarkupReader
from gateway.text.stretches import Stretch
from gateway.text.tags import InlineTags
from tests.gateway.text.builders import CASES, texts_in_pieces

ODD = "e\u0301\u0302ｶﾞ²³⁵⁻¹`´’\u200b\u200d\u00a0\u3000ﬁ㎡ａ％，aé한\u1112\u1161\u11ab.م\u200c1 "


@pytest.mark.parametrize(("written", "clean"), CASES["characters"])
def test_a_character_is_written_in_one_way(written: str, clean: str) -> None:
    assert cleaned(written) == clean
    assert cleaned(clean) == clean


def read(pieces: list[str]) -> list[Stretch]:
    reader = CleaningReader(MarkupReader(InlineTags()))
    stretches = [each for piece in pieces for step in reader.reading(piece) for each in step]
    return stretches + [each for step in reader.finishing() for each in step]


@given(st.one_of(texts_in_pieces(), st.lists(st.text(alphabet=ODD, max_size=12), max_size=12)))
def test_a_text_is_clean_alike_however_it_is_divided_and_none_of_it_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    divided, whole = read(pieces), read([text])
    assert "".join(each.written for each in divided) == text
    assert "".join(each.spoken for each in divided) == "".join(each.spoken for each in whole)


def test_each_clean_character_tells_what_was_written_for_it() -> None:
    stretches = read(["Cafe", "\u0301 in\u00a0", "120", "㎡**!**"])
    assert [(each.written, each.spoken) for each in stretches if each.written != each.spoken] == [
        ("e\u0301", "é"),
        ("\u00a0", " "),
        ("㎡", "m²"),
        ("**", ""),
        ("**", ""),
    ]


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


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_out_of_range_is_refused(position: int) -> None:
    with pytest.raises(ValueError, match=rf"got position {position}, expected 0 to 2"):
        unchanged("ab").alignment.source_at(position)
