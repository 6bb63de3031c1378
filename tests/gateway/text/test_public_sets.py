"""What peers' public test sets, and texts that were once read wrongly, are read as."""

from __future__ import annotations

import pytest

from gateway.text import TextOptions, load_text_front_end
from tests.gateway.text.builders import WHOLE, read_table

pytest.importorskip("wetext", reason="the text extra is not installed")

MOST_WRONG = {"en": 15}


@pytest.mark.parametrize("language", MOST_WRONG)
def test_the_table_says_how_each_input_is_read_today_and_few_readings_are_wrong(language: str) -> None:
    front_end, table = load_text_front_end(), read_table(f"public_sets/{language}.tsv")

    def read(text: str) -> str:
        stream = front_end.open(TextOptions(language=language), WHOLE)
        segments = [*stream.push(text), *stream.flush()]
        return "".join(stream.prepare(segment).text for segment in segments).strip().replace("\n", " ")

    assert {written: read(written) for written, _, _ in table} == {written: reading for written, reading, _ in table}
    verdicts = [verdict for _, _, verdict in table]
    assert set(verdicts) <= {"right", "as good", "wrong"} and verdicts.count("wrong") <= MOST_WRONG[language]
