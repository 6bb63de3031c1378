"""A client of HTTP/2 that can stop in the middle of anything, which gRPC's own clients can't."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from servicekit.timeouts import timeout
from tests.raw_clients import PREFACE, SETTINGS, frame, literal

HEALTH = "/grpc.health.v1.Health/Check"
SYNTHESIZE = "/tts_api.tts.v1.TextToSpeechService/Synthesize"
STREAMING = "/tts_api.tts.v1.TextToSpeechService/StreamingSynthesize"
_DATA, _HEADERS, _RST_STREAM, _PING, _WINDOW_UPDATE = 0, 1, 3, 6, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW, _MAX_FRAME = 65535, 16384


class RawHttp2:
    """One connection; it sends no more than the server's windows allow."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin the connection."""
        self.writer = writer
        self.ended = set[int]()
        """Streams that the server has ended."""
        self.is_closed = False
        """Whether the server has closed the connection."""
        self._reader = reader
        self._initial = _INITIAL_WINDOW
        self._room = defaultdict[int, int](lambda: self._initial)
        self._changed = asyncio.Condition()
        self._calls = 0
        writer.write(PREFACE + frame(SETTINGS, 0, 0))

    def call(self, path: str, headers: Sequence[tuple[str, str]] = ()) -> int:
        """Begin a call and send nothing; return its stream."""
        stream, self._calls = 2 * self._calls + 1, self._calls + 1
        fields = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"))
        grpc = (("content-type", "application/grpc"), ("te", "trailers"))
        block = b"".join(literal(name.encode(), value.encode()) for name, value in (*fields, *grpc, *headers))
        self.writer.write(frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    async def send(self, stream: int, declared: int, count: int, patience_s: float = 0.5) -> int:
        """Send so many bytes of a message that says to have more; return how many the server took."""
        sent = 0
        data = b"\0" + struct.pack(">I", declared)
        while sent < count and stream not in self.ended and not self.is_closed:
            room = min(self._room[0], self._room[stream], _MAX_FRAME, count - sent)
            if room <= 0:
                try:
                    async with timeout(patience_s), self._changed:
                        await self._changed.wait()
                except asyncio.TimeoutError:
                    return sent
                continue
            self.writer.write(frame(_DATA, 0, stream, data[sent : sent + room].ljust(room, b"\0")))
            for each in (0, stream):
                self._room[each] -= room
            sent += room
            with suppress(OSError):
                await self.writer.drain()
        return sent

    async def read(self) -> None:
        """Read until the server closes the connection."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
                async with self._changed:
                    self._changed.notify_all()
        except (OSError, asyncio.IncompleteReadError):
            self.is_closed = True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == 4:  # the windows that streams begin with
                    self._initial = value
            self.writer.write(frame(SETTINGS, _ACK, 0))
        elif kind == _WINDOW_UPDATE:
            self._room[stream] += int.from_bytes(payload, "big")
        elif kind == _PING and not flags & _ACK:
            self.writer.write(frame(_PING, _ACK, 0, payload))
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
            self.ended.add(stream)


@asynccontextmanager
async def raw_http2(port: int) -> AsyncIterator[RawHttp2]:
    """Connect; the connection is reset in the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = RawHttp2(reader, writer)
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        writer.transport.abort()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
