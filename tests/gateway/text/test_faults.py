"""Texts that were once read wrongly, each with its right reading: the whole way through the front end."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gateway.text import INTERLEAVED_TEXT, LIVE_TEXT, TextOptions, load_text_front_end
from gateway.text.splitter import CutBounds, SplitSettings

pytest.importorskip("wetext", reason="the text extra is not installed")

TABLE = Path(__file__).parent / "faults.tsv"
WHOLE = SplitSettings(CutBounds(5000, 5000, 5000), CutBounds(5000, 5000, 5000))
CUTS = {"live": LIVE_TEXT, "woven": INTERLEAVED_TEXT}
BAR = " ‖ "
FRONT_END = load_text_front_end()


def read_table() -> list[list[str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if not row[0].startswith("# ")]


def read(text: str, kind: str) -> str:
    language, how, *_ = kind.split()
    stream = FRONT_END.open(TextOptions(language=language), CUTS.get(how, WHOLE))
    segments = [*stream.push(text), *stream.flush()]
    return BAR.join(stream.prepare(segment).text.strip() for segment in segments)


@pytest.mark.parametrize(("written", "_got", "right", "kind"), read_table(), ids=lambda value: value[:40])
def test_a_text_that_was_misread_is_read_right(written: str, _got: str, right: str, kind: str) -> None:
    assert read(written, kind) == right
