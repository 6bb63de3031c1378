"""Reads along in an HTTP/2 connection: which streams are open, and what came of messages that are not whole yet.

    frame: length (3 bytes)  kind (1)  flags (1)  stream (4)  payload
    DATA's payloads, joined: compressed? (1 byte)  length (4)  message  compressed? ...

Headers are not decoded and nothing is checked: gRPC, which gets the same bytes, does that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PREFACE_BYTES = 24
"""Bytes that a client sends before its first frame."""
_HEAD_BYTES, _PREFIX_BYTES = 9, 5
_DATA, _HEADERS, _RST_STREAM = 0, 1, 3
_END_STREAM, _PADDED = 0x1, 0x8


class Streams:
    """The open streams of one connection."""

    def __init__(self) -> None:
        self.requests = Frames(PREFACE_BYTES, self._begin, self._read)
        """Takes what the client sends."""
        self.answers = Frames(0, self._answer, None)
        """Takes what the server sends."""
        self.unfinished_bytes = 0
        """Bytes received of messages that are not whole."""
        self._open: dict[int, _Message] = {}
        self._last = 0
        """Number of the newest stream."""

    @property
    def are_open(self) -> bool:
        """Whether a call is under way."""
        return bool(self._open)

    def _begin(self, kind: int, flags: int, stream: int) -> None:
        if kind == _HEADERS and stream > self._last:  # numbers grow; gRPC skips what is said of a stream that has ended
            self._last = stream
            if not flags & _END_STREAM:
                self._open[stream] = _Message()
        elif kind == _RST_STREAM:
            self._end(stream)

    def _read(self, stream: int, data: memoryview) -> None:
        if (message := self._open.get(stream)) is not None:
            before = message.bytes
            message.feed(data)
            self.unfinished_bytes += message.bytes - before

    def _answer(self, kind: int, flags: int, stream: int) -> None:
        if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self._end(stream)

    def _end(self, stream: int) -> None:
        if (message := self._open.pop(stream, None)) is not None:
            self.unfinished_bytes -= message.bytes


@dataclass(eq=False)
class Frames:
    """Finds the frames in one direction of a connection."""

    skipped: int
    """Bytes before the first frame that are still to come."""
    begin: Callable[[int, int, int], None]
    """Is told kind, flags and stream of each frame."""
    read: Callable[[int, memoryview], None] | None
    """Is given the payloads of DATA as they come, with their stream; None: they are skipped."""
    are_begun: bool = False
    """Whether a frame has come."""
    _head: bytearray = field(default_factory=bytearray)
    _stream: int = 0
    _data_left: int = 0
    """Bytes of DATA to come in this frame."""
    _other_left: int = 0
    """Other bytes to come in this frame."""
    _is_padded: bool = False
    """Whether the next byte says how many of the frame's last bytes are padding."""

    def feed(self, data: bytes) -> None:
        """Read on."""
        view, at = memoryview(data), 0
        while at < len(view):
            at += self._step(view[at:])

    def _step(self, view: memoryview) -> int:
        """Take some bytes; return how many."""
        if self.skipped:
            taken = min(self.skipped, len(view))
            self.skipped -= taken
        elif self._is_padded:
            taken = self._take_padding(view)
        elif self._data_left:
            taken = min(self._data_left, len(view))
            self._data_left -= taken
            assert self.read is not None
            self.read(self._stream, view[:taken])
        elif self._other_left:
            taken = min(self._other_left, len(view))
            self._other_left -= taken
        else:
            taken = min(_HEAD_BYTES - len(self._head), len(view))
            self._head += view[:taken]
            if len(self._head) == _HEAD_BYTES:
                self._take_head()
        return taken

    def _take_head(self) -> None:
        length, kind, flags = int.from_bytes(self._head[:3], "big"), self._head[3], self._head[4]
        self._stream = int.from_bytes(self._head[5:], "big") & 0x7FFFFFFF
        self._head.clear()
        self.are_begun = True
        is_read = kind == _DATA and self.read is not None
        self._data_left, self._other_left = (length, 0) if is_read else (0, length)
        self._is_padded = is_read and bool(flags & _PADDED) and length > 0
        self.begin(kind, flags, self._stream)

    def _take_padding(self, view: memoryview) -> int:
        self._is_padded = False
        length = self._data_left - 1
        self._other_left = min(view[0], length)
        self._data_left = length - self._other_left
        return 1


class _Message:
    """What came of a stream's message that is not whole."""

    __slots__ = ("_left", "_prefix", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes that came, the prefix among them; 0 between two messages."""
        self._prefix = 0
        """The message's length, as far as it has come."""
        self._left = 0
        """Bytes to come, once the length is known."""

    def feed(self, data: memoryview) -> None:
        """Read on."""
        at = 0
        while at < len(data):
            if self.bytes < _PREFIX_BYTES:
                # The first byte says whether the message is compressed: it leaves the four of the length by itself.
                self._prefix = (self._prefix << 8 | data[at]) & 0xFFFFFFFF
                taken = 1
                self._left = self._prefix
            else:
                taken = min(self._left, len(data) - at)
                self._left -= taken
            at += taken
            self.bytes += taken
            if self.bytes >= _PREFIX_BYTES and not self._left:
                self.bytes = 0
