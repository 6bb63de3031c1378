"""Server-sent events as OpenAI-compatible servers send them: from the pieces of a body to each event's data.

Knows neither HTTP nor what stands in an event. One line of data is one event.
"""

from __future__ import annotations

from gateway.errors import LLMProtocolError

MAX_LINE_BYTES = 1 << 20
"""Most bytes of a line: an event holds a few tokens, and a longer line must not fill the memory."""
_EXCERPT_CHARACTERS = 300
_DATA = b"data:"
_DONE = b"[DONE]"
_OTHER_FIELDS = (b":", b"event:", b"id:", b"retry:")
_LINE_ENDS = (b"\n", b"\r")
_EXPECTED = "is the LLM URL that of an OpenAI-compatible server?"


class EventLines:
    """Cuts one body into the lines that count, wherever the network cut it."""

    def __init__(self) -> None:
        """Begin before the first byte."""
        self._rest = b""
        self.is_done = False
        """Whether [DONE] has come; later events are ignored."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this piece completed; blank lines, comments and fields without data don't count.

        Lines end in LF, CR LF or CR. They are not checked: `event_data` reads them.

        Raises:
            LLMProtocolError: a line without an end.
        """
        raw = self._rest + piece
        # A CR LF that was cut in two makes one blank line more, which doesn't count.
        lines = raw.splitlines()
        self._rest = lines.pop() if lines and not raw.endswith(_LINE_ENDS) else b""
        if len(self._rest) > MAX_LINE_BYTES:
            raise _not_an_event(self._rest)
        return self._counting(lines)

    def end(self) -> list[bytes]:
        """Return the last line if the body's end is its only end."""
        return self.feed(b"\n")

    def _counting(self, lines: list[bytes]) -> list[bytes]:
        counting: list[bytes] = []
        for line in lines:
            if self.is_done or not line or line.startswith(_OTHER_FIELDS):
                continue
            self.is_done = line.startswith(_DATA) and line[len(_DATA) :].strip() == _DONE
            if not self.is_done:
                counting.append(line)
        return counting


def event_data(line: bytes) -> str:
    """Return the data of one line of `EventLines`.

    Raises:
        LLMProtocolError: it is no line of server-sent events, or not UTF-8.
    """
    if not line.startswith(_DATA):
        raise _not_an_event(line)
    try:
        return line[len(_DATA) :].strip().decode()
    except UnicodeDecodeError as error:
        raise _not_an_event(line) from error


def _not_an_event(line: bytes) -> LLMProtocolError:
    excerpt = line[:_EXCERPT_CHARACTERS].decode(errors="replace")
    return LLMProtocolError(f"the LLM sent a line that is no server-sent event: {excerpt!r}; {_EXPECTED}")
