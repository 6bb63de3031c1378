"""Written English and how it is read: a table, and what holds for any text."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.english import english_forms
from gateway.text.normalization.wetext_normalizer import WeTextNormalizer
from tests.gateway.text.builders import texts

pytest.importorskip("wetext", reason="the text extra is not installed")

ENGLISH = WeTextNormalizer("en")
TABLE = Path(__file__).parent / "data/english_forms.tsv"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    kind: str
    written: str
    spoken: str


def read_table() -> list[Case]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Case(*row) for row in rows if not row[0].startswith("#")]


CASES = read_table()


def as_heard(text: str) -> str:
    """Capitals and hyphens are not heard; pauses are."""
    return " ".join(text.casefold().replace("-", " ").split())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.written}")
def test_a_written_form_is_read_as_the_table_says(case: Case) -> None:
    assert as_heard(ENGLISH.normalize(case.written).text) == as_heard(case.spoken)


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.written)
def test_a_form_is_read_alike_within_a_sentence(case: Case) -> None:
    spoken = ENGLISH.normalize(f"Then we said so: {case.written} It was good").text
    assert not any(map(str.isdigit, spoken))


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
