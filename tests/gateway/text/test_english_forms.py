"""Written English and how it is read: a table, and what holds for any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.english.forms import english_forms, is_plain
from gateway.text.normalization.addresses import spoken_addresses
from gateway.text.normalization.wetext_normalizer import WeTextNormalizer
from tests.gateway.text.builders import read_table, texts

pytest.importorskip("wetext", reason="the text extra is not installed")

ENGLISH = WeTextNormalizer("en")


FORMS: dict[str, list[tuple[str, str]]] = {}
"""What is written and how it is read, by kind."""
for kind, written, spoken in read_table("data/english_forms.tsv"):
    FORMS.setdefault(kind, []).append((written, spoken))


def test_no_text_of_the_table_that_is_read_otherwise_than_written_is_taken_for_words_alone() -> None:
    rows = [row for kind in FORMS.values() for row in kind]
    assert [written for written, spoken in rows if spoken != written and is_plain(written)] == []
    assert is_plain("It is a fine day. We saw it, and so did you!") and not is_plain("We saw Dr. No at no. Elm St")


def read(text: str) -> str:
    return ENGLISH.normalize(spoken_addresses(text, "en").text).text


def as_heard(text: str) -> str:
    """Capitals and hyphens are not heard; pauses are."""
    return " ".join(text.casefold().replace("-", " ").split())


@pytest.mark.parametrize("kind", FORMS)
def test_written_forms_are_read_as_the_table_says(kind: str) -> None:
    got = {written: as_heard(read(written)) for written, _ in FORMS[kind]}
    assert got == {written: as_heard(spoken) for written, spoken in FORMS[kind]}


@pytest.mark.parametrize("kind", FORMS)
def test_forms_are_read_within_a_sentence_too(kind: str) -> None:
    for written, _ in FORMS[kind][::4]:
        assert not any(map(str.isdigit, read(f"Then we said so: {written} It was good"))), written


@settings(deadline=None)
@given(texts)
def test_no_text_is_too_odd_for_the_rules(text: str) -> None:
    english_forms(text[:240])


@settings(deadline=None)
@given(st.text(alphabet="0123456789.,:/-–$%° xXkmMVI'\"()+#tShADprn", max_size=240))
def test_nor_any_mess_of_figures(text: str) -> None:
    english_forms(text)


@pytest.mark.parametrize("unit", ["1", "1.", "1-", "1/", "A-1", "12:3", "$1,", "+1 ", "I ", "Dr. ", "a.", "St. A"])
def test_a_segment_full_of_one_form_ends_its_reading(unit: str) -> None:
    english_forms(unit * 240)
