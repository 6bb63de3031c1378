"""Texts and parts that several tests of the text front end use."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from gateway.text import WHOLE_TEXT, SpokenSegment, TextFrontEnd, TextOptions
from gateway.text.alignment import Alignment, NormalizedText, SpokenStretch
from gateway.text.breaks import BreakFinder
from gateway.text.sentences import SentencexRules
from gateway.text.splitter import CutBounds, IncrementalSplitter, Segment, SplitSettings
from gateway.text.tags import InlineTags
from llm_service.vocab import INLINE_TAGS

HERE = Path(__file__).parent
WHOLE = SplitSettings(CutBounds(5000, 5000, 5000), CutBounds(5000, 5000, 5000))
"""No cuts: a table does not hang on the length of segments."""
SHORT = SplitSettings(first=CutBounds(4, 10, 160), later=CutBounds(20, 60, 160))
"""Cuts often, so that short texts show much."""

CHAPTER = (
    'Dr. Smith paid $3.50 for it, e.g. on Jan. 5. "Stop!" she said. "Why? It is 12:30." [breath] Then... nothing. '
    "<strong>Very. Good.</strong> See https://example.com/a.b?c=1,2 now! 今天天气很好，我们去公园吧！“好的。”他说。"
    "Bonjour ! Ça va ? Am 5. Mai 2024 war es so: 1.234,5 <laughter>ha ha.</laughter> مرحبا؟ نعم. 🙂👩‍👩‍👧 é\u0301.\n\n"
)


def _cases() -> dict[str, list[Any]]:
    tables = yaml.safe_load((HERE / "data/cases.yaml").read_text("utf-8"))
    return {
        name: [pytest.param(*row, id=case) for case, row in rows.items()] if isinstance(rows, dict) else rows
        for name, rows in tables.items()
    }


CASES = _cases()
"""Rows for `parametrize`, by the name of their table."""

FRAGMENTS = [*CASES["fragments"], "x" * 30, "1" * 30, "\u0301" * 30, " " * 30, "。" * 9]

texts = st.lists(st.one_of(st.sampled_from([*FRAGMENTS, *INLINE_TAGS]), st.text(max_size=6)), max_size=60).map("".join)
"""Adversarial texts: no lone surrogates, which `st.text` leaves out too."""


def finder(rules: SentencexRules | None = None) -> BreakFinder:
    """Return a break finder, for texts of unknown language unless rules are given."""
    return BreakFinder(rules or SentencexRules(None, lambda _: None), InlineTags())


def read_table(name: str) -> list[list[str]]:
    """Return the rows of a file of this folder, parted by tabs, without those that are comments."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if not row[0].startswith("# ")]


@st.composite
def texts_in_pieces(draw: st.DrawFn) -> list[str]:
    """Draw a text and one way to divide it."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=40)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def shouting(text: str) -> NormalizedText:
    """A normaliser whose work is easy to see: every `5` becomes FIVE."""
    spans = tuple(SpokenStretch(1, 4 if character == "5" else 1) for character in text)
    return NormalizedText(text.replace("5", "FIVE"), Alignment(spans))


def prepared(
    front_end: TextFrontEnd, text: str, options: TextOptions, settings: SplitSettings = WHOLE_TEXT, size: int = 10**6
) -> list[SpokenSegment]:
    """Return a text's segments, ready to be spoken; the text comes in pieces of `size` characters."""
    stream = front_end.open(options, settings)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    segments = [segment for piece in pieces for segment in stream.push(piece)] + stream.flush()
    assert "".join(segment.text for segment in segments) == text
    return [stream.prepare(segment) for segment in segments]


def source_position(spoken: SpokenSegment, position: int) -> int:
    """Return the position in all the text received for one in a segment's words."""
    return spoken.source.start + spoken.alignment.source_at(position)


def split_text(text: str, finder: BreakFinder, settings: SplitSettings) -> list[Segment]:
    splitter = IncrementalSplitter(finder, settings)
    return [*splitter.push(text), *splitter.flush()]
