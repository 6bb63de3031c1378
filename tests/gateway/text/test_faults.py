"""Texts that were once read wrongly, and peers' public test sets: what they are read as, the whole way through."""

from __future__ import annotations

import pytest

from gateway.text import INTERLEAVED_TEXT, LIVE_TEXT, TextOptions, load_text_front_end
from tests.gateway.text.builders import WHOLE, prepared, read_table

pytest.importorskip("wetext", reason="the text extra is not installed")

CUTS = {"live": LIVE_TEXT, "woven": INTERLEAVED_TEXT}
BAR = " ‖ "
FRONT_END = load_text_front_end()
MOST_WRONG = {"en": 15}


def read(text: str, kind: str) -> str:
    language, how, *_ = kind.split()
    segments = prepared(FRONT_END, text, TextOptions(language=language), CUTS.get(how, WHOLE))
    return BAR.join(segment.text.strip() for segment in segments)


@pytest.mark.parametrize(("written", "_got", "right", "kind"), read_table("faults.tsv"), ids=lambda value: value[:40])
def test_a_text_that_was_misread_is_read_right(written: str, _got: str, right: str, kind: str) -> None:
    assert read(written, kind) == right


@pytest.mark.parametrize("language", MOST_WRONG)
def test_the_table_says_how_each_input_is_read_today_and_few_readings_are_wrong(language: str) -> None:
    table = read_table(f"public_sets/{language}.tsv")
    readings = {written: read(written, f"{language} whole").replace("\n", " ") for written, _, _ in table}
    assert readings == {written: reading for written, reading, _ in table}
    verdicts = [verdict for _, _, verdict in table]
    assert set(verdicts) <= {"right", "as good", "wrong"} and verdicts.count("wrong") <= MOST_WRONG[language]
