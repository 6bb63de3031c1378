"""Server-sent events out of bytes: wherever they are cut, and whatever else comes."""

from __future__ import annotations

import pytest

from gateway.errors import LLMProtocolError
from gateway.llm.sse import MAX_LINE_BYTES, EventLines, event_data

BODY = ': hi\nevent: x\ndata: {"a": "é语"}\n\nid: 7\ndata:two\n\nretry: 9\ndata:  three  \n\ndata: [DONE]\n\ndata: 4\n'
EVENTS = ['{"a": "é语"}', "two", "three"]


def read(pieces: list[bytes]) -> list[str]:
    lines = EventLines()
    found = [event_data(line) for piece in pieces for line in lines.feed(piece)]
    return found + [event_data(line) for line in lines.end()]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_body_cut_at_any_byte_gives_the_same_events(line_end: str) -> None:
    raw = BODY.replace("\n", line_end).encode()
    assert read([raw]) == EVENTS
    for at in range(len(raw)):
        assert read([raw[:at], b"", raw[at:]]) == EVENTS
    assert read([raw[at : at + 1] for at in range(len(raw))]) == EVENTS


def test_nothing_counts_after_done() -> None:
    lines = EventLines()
    assert lines.feed(b"data: one\n\ndata:[DONE]\n\n<html>\n") == [b"data: one"]
    assert lines.is_done
    assert lines.feed(b"data: late\n\n") == []


@pytest.mark.parametrize("line", [b"<html>", b"\xff\xfe\x00garbage", b"data: \xff\xfe", b"{}", b"  "])
def test_a_line_that_is_no_event_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(LLMProtocolError, match="no server-sent event"):
        read([b"data: one\n\n" + line + b"\n"])


def test_a_line_without_an_end_is_a_protocol_error() -> None:
    lines = EventLines()
    with pytest.raises(LLMProtocolError):
        for _ in range(3):
            lines.feed(b"data: " + bytes(MAX_LINE_BYTES // 2))
