"""Texts that were once read wrongly, each with its right reading: the whole way through the front end."""

from __future__ import annotations

import pytest

from gateway.text import INTERLEAVED_TEXT, LIVE_TEXT, TextOptions, load_text_front_end
from tests.gateway.text.builders import WHOLE, read_table

pytest.importorskip("wetext", reason="the text extra is not installed")

CUTS = {"live": LIVE_TEXT, "woven": INTERLEAVED_TEXT}
BAR = " ‖ "
FRONT_END = load_text_front_end()


def read(text: str, kind: str) -> str:
    language, how, *_ = kind.split()
    stream = FRONT_END.open(TextOptions(language=language), CUTS.get(how, WHOLE))
    segments = [*stream.push(text), *stream.flush()]
    return BAR.join(stream.prepare(segment).text.strip() for segment in segments)


@pytest.mark.parametrize(("written", "_got", "right", "kind"), read_table("faults.tsv"), ids=lambda value: value[:40])
def test_a_text_that_was_misread_is_read_right(written: str, _got: str, right: str, kind: str) -> None:
    assert read(written, kind) == right
