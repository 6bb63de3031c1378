"""Callers of the gateway under test: those who listen to the end, and those who do it harm."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from servicekit.timeouts import timeout

HOST = "127.0.0.1"
TIMEOUT_S = 90.0
TEXTS = (
    "The first caller asks for the time of the next train to the coast.",
    "A second voice reads the weather, and it will rain in the afternoon.",
    "Somebody counts the boats that come back before it is dark.",
    "The fourth of them tells a friend about the garden and the dog.",
    "Nobody knows who painted the door of the old house by the lake.",
    "At last a child asks whether the moon follows them on the way home.",
)
_HTTP_OK, _HTTP_TOO_MANY, _HTTP_UNAVAILABLE = 200, 429, 503
_SOCKET_S = 3.0


@dataclass(frozen=True)
class Answer:
    """What one caller heard."""

    text: int
    """Number of the request's text, which is its seed too."""
    status: int
    """Status of HTTP; 0: none came."""
    pcm: bytes
    """Audio received: 16-bit samples at 24 kHz."""
    seconds: float
    error: str | None
    """What went wrong; None if the answer ended as HTTP's should."""

    @property
    def is_refused(self) -> bool:
        """Whether it was told at once that there is no room, or nobody who could speak."""
        return self.status in (_HTTP_TOO_MANY, _HTTP_UNAVAILABLE)

    @property
    def is_whole(self) -> bool:
        """Whether the audio came to its end."""
        return self.status == _HTTP_OK and self.error is None and bool(self.pcm)


async def speak(url: str, text: int) -> Answer:
    """Ask for one text and listen to the end."""
    body = {"model": "cosydit", "input": TEXTS[text], "voice": "default", "response_format": "pcm", "seed": text}
    began_s, pieces, status, error = time.monotonic(), list[bytes](), 0, None
    try:
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=False) as client,
            client.stream("POST", f"{url}/v1/audio/speech", json=body) as answer,
        ):
            status = answer.status_code
            if status != _HTTP_OK:
                error = (await answer.aread())[:300].decode(errors="replace")
            else:
                async for piece in answer.aiter_bytes():
                    pieces.append(piece)
    except httpx.HTTPError as failure:
        error = repr(failure)
    return Answer(text, status, b"".join(pieces), time.monotonic() - began_s, error)


@dataclass(frozen=True)
class Doors:
    """Where the gateway listens."""

    http: int
    grpc: int

    @property
    def url(self) -> str:
        """Of HTTP."""
        return f"http://{HOST}:{self.http}"


BadClient = Callable[[Doors, random.Random], Awaitable[None]]


@asynccontextmanager
async def _connected(port: int, receive_bytes: int | None = None) -> AsyncIterator[socket.socket]:
    """Connect without any library; the connection is reset in the end."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (HOST, port))
        yield connection
    finally:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


async def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(connection, data)


async def _receive(connection: socket.socket, count: int, seconds: float) -> bytes:
    with suppress(OSError, asyncio.TimeoutError):
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, count), seconds)
    return b""


def _speech_request(text: str) -> bytes:
    body = f'{{"model": "cosydit", "input": "{text}", "voice": "default", "response_format": "pcm"}}'.encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def vanish(doors: Doors, rng: random.Random) -> None:
    """Ask for speech, listen for a moment, and be gone."""
    async with _connected(doors.http) as connection:
        await _send(connection, _speech_request(rng.choice(TEXTS)))
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await _receive(connection, 1000, 0.2)


async def read_a_byte_a_second(doors: Doors, rng: random.Random) -> None:
    """Ask for a long text, read next to nothing for some seconds, and be gone."""
    async with _connected(doors.http, receive_bytes=2048) as connection:
        await _send(connection, _speech_request(" ".join(TEXTS)))
        for _ in range(rng.randrange(2, 5)):
            await _receive(connection, 1, 1.0)
            await asyncio.sleep(1.0)


async def drip_an_upload(doors: Doors, rng: random.Random) -> None:
    """Announce a recording and send it a few bytes at a time."""
    async with _connected(doors.http) as connection:
        head = f"POST /v1/audio/voices HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: multipart/form-data; boundary=x\r\n"
        await _send(connection, f"{head}content-length: 1000000\r\n\r\n--x\r\n".encode())
        for _ in range(rng.randrange(20, 60)):
            await _send(connection, rng.randbytes(rng.randrange(1, 9)))
            await asyncio.sleep(0.05)


async def send_half_a_head(doors: Doors, rng: random.Random) -> None:
    """Begin many requests and end none."""
    async with _connected(doors.http) as one, _connected(doors.http) as other:
        for connection in (one, other):
            await _send(connection, b"POST /v1/audio/speech HTTP/1.1\r\nhost: " + b"x" * rng.randrange(200))
        await asyncio.sleep(rng.uniform(0.5, 2.0))


async def send_garbage_to_http(doors: Doors, rng: random.Random) -> None:
    """Send bytes that are no HTTP."""
    for _ in range(20):
        async with _connected(doors.http) as connection:
            await _send(connection, rng.randbytes(rng.randrange(1, 4000)))
            await _receive(connection, 1000, 0.05)


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _HEADERS, _RST_STREAM = 4, 1, 3
_END_HEADERS = 4
_PATH = b"/tts_api.tts.v1.TextToSpeechService/Synthesize"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Write a header of HPACK, neither indexed nor compressed (RFC 7541, 6.2.2); both are shorter than 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


async def send_garbage_to_grpc(doors: Doors, rng: random.Random) -> None:
    """Send bytes that are no HTTP/2, and frames that are none."""
    for number in range(20):
        async with _connected(doors.grpc) as connection:
            begin = _PREFACE + _frame(_SETTINGS, 0, 0) if number % 2 else b""
            await _send(connection, begin + rng.randbytes(rng.randrange(1, 4000)))
            await _receive(connection, 1000, 0.05)


async def reset_rapidly(doors: Doors, rng: random.Random) -> None:
    """Open HTTP/2 streams and reset each at once, some thousand times (CVE-2023-44487)."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", _PATH), (b":authority", b"localhost"))
    block = b"".join(
        _literal(*pair) for pair in (*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"))
    )
    async with _connected(doors.grpc) as connection:
        await _send(connection, _PREFACE + _frame(_SETTINGS, 0, 0))
        for first in range(1, 2 * rng.randrange(1000, 3000), 200):
            numbers = range(first, first + 200, 2)
            cancel = struct.pack(">I", 8)
            frames = [_frame(_HEADERS, _END_HEADERS, n, block) + _frame(_RST_STREAM, 0, n, cancel) for n in numbers]
            await _send(connection, b"".join(frames))
            await _receive(connection, 65536, 0.005)


async def break_a_websocket(doors: Doors, rng: random.Random) -> None:
    """Open sockets; send what is no message, or begin to speak and be gone."""
    begin = '{"type": "session.config", "response_format": "pcm"}'
    texts = (begin, '{"type": "input.text", "text": "Hello there, this is', "[" * 5000, "\x00", '{"type": 5}')
    for _ in range(4):
        with suppress(OSError, WebSocketException, asyncio.TimeoutError):
            async with timeout(_SOCKET_S), connect(f"ws{doors.url[4:]}/v1/audio/speech/stream", proxy=None) as ws:
                for text in rng.choices(texts, k=3):
                    await ws.send(text)
                ws.transport.abort()


async def hold_idle_connections(doors: Doors, rng: random.Random) -> None:
    """Open a hundred connections to each door and say nothing."""
    async with AsyncExitStack() as held:
        for port in (doors.http, doors.grpc):
            for _ in range(100):
                await held.enter_async_context(_connected(port))
        await asyncio.sleep(rng.uniform(0.5, 2.0))


BAD_CLIENTS: Mapping[str, BadClient] = {
    "a client vanishes": vanish,
    "a client reads a byte a second": read_a_byte_a_second,
    "an upload drips": drip_an_upload,
    "half a head": send_half_a_head,
    "garbage to HTTP": send_garbage_to_http,
    "garbage to gRPC": send_garbage_to_grpc,
    "HTTP/2 rapid reset": reset_rapidly,
    "a broken WebSocket": break_a_websocket,
    "idle connections": hold_idle_connections,
}
