"""What peers' public test sets, and texts that were once read wrongly, are read as."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gateway.text import TextOptions, load_text_front_end
from gateway.text.splitter import CutBounds, SplitSettings

pytest.importorskip("wetext", reason="the text extra is not installed")

SETS = Path(__file__).parent / "public_sets"
MOST_WRONG = {"en": 15}
WHOLE = SplitSettings(CutBounds(5000, 5000, 5000), CutBounds(5000, 5000, 5000))
"""No cuts: a table does not hang on the length of segments."""


def read_table(language: str) -> list[list[str]]:
    with (SETS / f"{language}.tsv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row[0] != "# input"]


@pytest.mark.parametrize("language", MOST_WRONG)
def test_the_table_says_how_each_input_is_read_today(language: str) -> None:
    front_end = load_text_front_end()

    def read(text: str) -> str:
        stream = front_end.open(TextOptions(language=language), WHOLE)
        segments = [*stream.push(text), *stream.flush()]
        return "".join(stream.prepare(segment).text for segment in segments).strip().replace("\n", " ")

    readings = {written: read(written) for written, _, _ in read_table(language)}
    assert readings == {written: reading for written, reading, _ in read_table(language)}


@pytest.mark.parametrize("language", MOST_WRONG)
def test_few_readings_are_wrong(language: str) -> None:
    verdicts = [verdict for _, _, verdict in read_table(language)]
    assert set(verdicts) <= {"right", "as good", "wrong"}
    assert verdicts.count("wrong") <= MOST_WRONG[language]
