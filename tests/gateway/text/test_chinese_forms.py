"""Written Chinese and how it is to be read: a table, peers' public sets, and what holds for any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.chinese import chinese_forms, normalize_chinese
from gateway.text.cleaning import cleaned
from tests.gateway.text.builders import read_table, texts

MOST_WRONG = 8
"""Of the public sets' readings."""
MESS = "0123456789.,:/-–~至到%℃年月日号个点分元$¥万xXkmMV²³^=+()"


CHINESE_FORMS = read_table("data/chinese_forms.tsv")
PUBLIC = read_table("public_sets/zh.tsv")


@pytest.mark.parametrize(("kind", "written", "spoken"), CHINESE_FORMS)
def test_a_written_form_is_read_as_the_table_says(kind: str, written: str, spoken: str) -> None:
    assert chinese_forms(cleaned(written)) == spoken


def test_peers_public_sets_are_read_as_they_were_judged_by_hand() -> None:
    assert [[written, chinese_forms(cleaned(written)), verdict] for written, _, verdict in PUBLIC] == PUBLIC
    assert sum(verdict == "wrong" for *_, verdict in PUBLIC) <= MOST_WRONG
    assert {verdict for *_, verdict in PUBLIC} == {"right", "as good", "wrong"}


def test_a_form_is_read_alike_within_a_sentence_and_no_figure_is_left() -> None:
    spoken = [normalize_chinese(f"他说：{cleaned(written)}，就是这样。").text for _, written, _ in CHINESE_FORMS]
    assert [text for text in spoken if any(map(str.isdecimal, text))] == []


@given(texts | st.text(alphabet=MESS, max_size=240))
def test_any_text_is_read_without_error_and_covered_by_its_alignment(text: str) -> None:
    normalized = normalize_chinese(text[:240])
    assert normalized.alignment.source_length == len(text[:240])
    assert normalized.alignment.spoken_length == len(normalized.text)
    assert not any(map(str.isdecimal, normalized.text))


@pytest.mark.parametrize(
    "unit", ["1", "1.", "1-", "1/", "A-1", "12:3", "$1,", "+1 ", "第1", "1个", "2 ", "0", "1到", "1年", "号1"]
)
def test_a_chinese_segment_full_of_one_form_ends_its_reading(unit: str) -> None:
    chinese_forms(unit * 240)
