"""Messages that are not whole yet have one bound for all doors, whoever sends them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.access.connections import WireLimits
from gateway.access.settings import AccessSettings
from gateway.access.turns import PIECE_BYTES
from gateway.doors.http2 import Frames, Streams
from gateway.voices.registry import NamedVoice
from servicekit.process import resident_bytes
from servicekit.timeouts import timeout
from tests.gateway.access.door import KEY, Door, keys, opened_door
from tests.gateway.access.test_connections import WITH_KEY, connected
from tests.gateway.doors.raw_http2 import HEALTH, STREAMING, raw_http2
from tests.raw_clients import frame

Voices = list[NamedVoice]
Gone = Callable[[], bool]
Begin = Callable[[Door], AbstractAsyncContextManager[Gone]]
BOUND = 100_000
PART = 60_000
"""Bytes of a message that has no end: one stays within the bound, two do not."""
PATIENCE_S = 10.0
UPGRADE = (
    "GET /v1/audio/speech/stream HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    f"sec-websocket-version: 13\r\nsec-websocket-key: {'a' * 22}==\r\nauthorization: Bearer {KEY}\r\n\r\n"
).encode()


@asynccontextmanager
async def begun(port: int, *parts: bytes) -> AsyncIterator[Gone]:
    """Send the parts, with time between them; then nothing more."""
    async with connected(port, parts[0]) as reader:
        for part in parts[1:]:
            await asyncio.wait_for(reader.read(1), PATIENCE_S)  # the answer to the handshake has begun
            reader._transport.write(part)  # type: ignore[attr-defined]
        reading = asyncio.create_task(reader.read())
        yield reading.done
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def ws_frame(opcode: int, size: int, sent: int) -> bytes:
    """Make a frame of text that goes on, of which only the beginning is sent."""
    return struct.pack(">BBQ", opcode, 0xFF, size) + bytes(4) + b"x" * sent


def http_body(door: Door) -> AbstractAsyncContextManager[Gone]:
    return begun(door.ports["HTTP"], WITH_KEY + b" " * PART)


def http_head(door: Door) -> AbstractAsyncContextManager[Gone]:
    return begun(door.ports["HTTP"], b"GET / HTTP/1.1\r\nx: " + b"x" * PART)


def http_tiny_chunks(door: Door) -> AbstractAsyncContextManager[Gone]:
    head = WITH_KEY.replace(b"content-length: 100000", b"transfer-encoding: chunked")
    return begun(door.ports["HTTP"], head + b"1\r\n \r\n" * (PART // 6))


def ws_one_frame(door: Door) -> AbstractAsyncContextManager[Gone]:
    return begun(door.ports["HTTP"], UPGRADE, ws_frame(1, 2 * PART, PART))


def ws_many_frames(door: Door) -> AbstractAsyncContextManager[Gone]:
    size = PART // 30
    frames = [ws_frame(0 if number else 1, size, size) for number in range(30)]
    return begun(door.ports["HTTP"], UPGRADE, b"".join(frames))


def ws_tiny_frames(door: Door) -> AbstractAsyncContextManager[Gone]:
    frame = b"\x00\x80\0\0\0\0"
    return begun(door.ports["HTTP"], UPGRADE, b"\x01" + frame[1:] + frame * (PART // len(frame)))


def wyoming_event(door: Door) -> AbstractAsyncContextManager[Gone]:
    return begun(door.ports["Wyoming"], b'{"type": "synthesize", "data_length": 200000}\n' + b" " * PART)


@asynccontextmanager
async def grpc_message(door: Door, path: str = HEALTH, key: str = "") -> AsyncIterator[Gone]:
    async with raw_http2(door.ports["gRPC"]) as client:
        headers = (("authorization", f"Bearer {key}"),) if key else ()
        await client.send(client.call(path, headers), 2 * PART, PART)
        yield lambda: client.is_closed


def grpc_with_key(door: Door) -> AbstractAsyncContextManager[Gone]:
    return grpc_message(door, STREAMING, KEY)


@pytest.mark.parametrize(
    "begin", [http_head, http_body, ws_one_frame, ws_many_frames, wyoming_event, grpc_message, grpc_with_key]
)
async def test_who_passes_the_bound_loses_the_connection_that_began_first(voices: Voices, begin: Begin) -> None:
    settings = AccessSettings(fixed_keys=keys(), wire=WireLimits(max_unfinished_bytes=BOUND, max_header_bytes=BOUND))
    async with opened_door(voices, settings) as door, AsyncExitStack() as held, timeout(PATIENCE_S):
        connections = door.access.connections
        first = await held.enter_async_context(begin(door))
        while connections.unfinished_bytes < PART:
            await asyncio.sleep(0.01)
        assert not first()
        second = await held.enter_async_context(begin(door))
        while not first():
            await asyncio.sleep(0.01)
        while not PART <= connections.unfinished_bytes <= BOUND:
            await asyncio.sleep(0.01)
        assert not second()
        await held.aclose()
        while connections.unfinished_bytes:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("declared", [63 * 2**20, 4 * 2**20 - 1], ids=["too large", "not too large"])
async def test_forty_calls_of_large_messages_without_an_end_take_little_memory(voices: Voices, declared: int) -> None:
    settings = AccessSettings(fixed_keys=keys(), wire=WireLimits(max_unfinished_bytes=16 * 2**20))
    async with opened_door(voices, settings) as door, raw_http2(door.ports["gRPC"]) as client:
        before = resident_bytes()
        await asyncio.gather(*(client.send(client.call(HEALTH), declared, declared) for _ in range(40)))
        assert resident_bytes() - before < 100 * 2**20
        stub = health_pb2_grpc.HealthStub(door.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert isinstance(answer, Message)


def test_bytes_of_unfinished_messages_are_counted_however_they_are_cut() -> None:
    def data(payload: bytes, stream: int = 1, flags: int = 0) -> bytes:
        return frame(0, flags, stream, payload)

    whole = b"\0\0\0\0\x03abc"
    steps = [
        (b"x" * 24 + frame(4, 0, 0) + frame(1, 4, 1, b"headers"), 0),
        (data(whole + whole[:7]), 7),
        (data(whole[7:]), 0),
        (data(b""), 0),
        (data(b"\x04" + whole[:6] + b"\0\0\0\0", flags=0x8), 6),  # padded
        (frame(1, 4, 3, b"") + data(b"\0\0\0\1\0" + b"y" * 100, 3), 6 + 105),
        (data(whole[6:]), 105),
        (frame(3, 0, 3, b"\0\0\0\0"), 0),
        (data(b"z" * 50, 3), 0),  # after its end
    ]
    together, singly = Streams(), Streams()
    for sent, unfinished in steps:
        together.requests.feed(sent)
        for at in range(len(sent)):
            singly.requests.feed(sent[at : at + 1])
        assert (together.unfinished_bytes, singly.unfinished_bytes) == (unfinished, unfinished)
    assert together.are_open
    together.answers.feed(frame(1, 5, 1, b"trailers"))
    assert not together.are_open


@pytest.mark.parametrize(
    ("begin", "reader"),
    [
        (http_tiny_chunks, (H11Protocol, "data_received")),
        (ws_tiny_frames, (WebSocketsSansIOProtocol, "data_received")),
        (grpc_message, (Frames, "feed")),
    ],
    ids=["HTTP", "WebSocket", "gRPC"],
)
async def test_what_comes_at_once_is_read_in_several_turns(
    voices: Voices, begin: Begin, reader: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of 256 KiB may be tens of thousands of tiny frames."""
    read, sizes = getattr(*reader), list[int]()
    monkeypatch.setattr(*reader, lambda self, data: (sizes.append(len(data)), read(self, data)))
    async with opened_door(voices) as door, begin(door), timeout(PATIENCE_S):
        while sum(sizes) < PART:
            await asyncio.sleep(0.01)
    assert max(sizes) <= PIECE_BYTES
