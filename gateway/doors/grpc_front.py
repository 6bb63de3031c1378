"""Takes gRPC's connections in its place: counts them, speaks TLS, and bounds what they send before it is whole.

    caller ── TLS ──► _Caller ── counted ──► socket file in a private folder ──► grpc.aio's server
           ◄───────────────────────────────────────────────────────────────────

gRPC accepts any number of connections of a peer, and holds what comes of a message until it is whole. It can be told
neither how many of each are too many. The server knows a caller by the name of the socket that comes here to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

from gateway.access.connections import Connection, Connections, Listener
from gateway.access.settings import TlsFiles
from gateway.access.turns import Backlog
from gateway.doors.http2 import Streams
from gateway.lifecycle.shutdown import ACCEPTED_AT_ONCE, let_many_wait
from servicekit.tasks import cancel

SERVER_NAME = "grpc"
"""Name of the server's own socket in its folder."""
_ALPN = "h2"
_BUFFER = memoryview(bytearray(16 * 1024))
"""Takes what a caller sends. It is used by all callers, as what has come in it is taken at once."""


@asynccontextmanager
async def fronting(
    folder: Path, listeners: list[Listener], connections: Connections, tls: TlsFiles | None
) -> AsyncIterator[None]:
    """Accept callers until the context is left, which ends those that are still connected.

    Args:
        folder: private, with the server's socket.
        tls: certificate and key; None: no TLS.
    """
    callers = set[_Caller]()
    context = None if tls is None else tls.context(_ALPN)
    servers = [
        await asyncio.get_running_loop().create_server(
            lambda: _Caller(folder, connections, callers),
            sock=each,
            ssl=context,
            backlog=ACCEPTED_AT_ONCE,
        )
        for each in listeners
    ]
    let_many_wait(servers)
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for caller in list(callers):
            caller.transport.close()


class _Caller(asyncio.BufferedProtocol):
    """One connection of a caller, and its way to the server."""

    transport: asyncio.Transport
    counted: Connection
    _requests: Backlog
    _connecting: asyncio.Task[None]

    def __init__(self, folder: Path, connections: Connections, callers: set[_Caller]) -> None:
        self._folder = folder
        self._connections = connections
        self._callers = callers
        self.streams = Streams()
        self.server: asyncio.Transport | None = None
        """The way to the server, once there is one."""
        self.is_server_full = False
        """Whether the server is to read first."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()
        self._requests = Backlog(self._connections.turns, self.transport, self._parse_requests, self.resume_reading)
        self.counted = self._connections.of(transport)
        self.counted.on_drop = self.transport.abort
        self._callers.add(self)
        self._connecting = asyncio.create_task(self._connect())

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        assert self.server is not None
        data = bytes(_BUFFER[:nbytes])
        self.server.write(data)
        self._requests.add(data)

    def _parse_requests(self, data: bytes) -> None:
        self.streams.requests.feed(data)
        if self.streams.requests.are_begun:
            self.counted.greeted()
        self.note()

    def resume_reading(self) -> None:
        """Read on, unless the server is to read first."""
        if not self.is_server_full and not self.transport.is_closing():
            self.transport.resume_reading()

    def note(self) -> None:
        """Have what the streams say counted."""
        self._connections.set_idle(self.counted, not self.streams.are_open)
        self.counted.hold(self.streams.unfinished_bytes)

    def pause_writing(self) -> None:
        if self.server is not None:
            self.server.pause_reading()

    def resume_writing(self) -> None:
        if self.server is not None:
            self.server.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._callers.discard(self)
        cancel(self._connecting)
        del self._requests, self._connecting  # they lead back here, and would wait for the collector of cycles
        if self.server is not None:
            self.server.close()

    async def _connect(self) -> None:
        address, port = self.transport.get_extra_info("peername")[:2]
        try:
            joined = await _join(self._folder, f"{address}:{port}")
            await asyncio.get_running_loop().create_connection(lambda: _Server(self), sock=joined)
        except OSError:
            self.transport.abort()
            return
        self.resume_reading()


class _Server(asyncio.Protocol):
    """The server's end of a caller's connection."""

    def __init__(self, caller: _Caller) -> None:
        self._caller = caller

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._caller.server = cast(asyncio.Transport, transport)
        if self._caller.transport.is_closing():
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._caller.transport.write(data)
        self._caller.streams.answers.feed(data)
        self._caller.note()

    def pause_writing(self) -> None:
        self._caller.is_server_full = True
        self._caller.transport.pause_reading()

    def resume_writing(self) -> None:
        self._caller.is_server_full = False
        self._caller.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._caller.transport.close()  # once what was written has left, or soon


async def _join(folder: Path, name: str) -> socket.socket:
    """Connect to the server by a socket of this name, which gRPC tells as that of the peer."""
    joined = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    joined.setblocking(False)
    path = os.fspath(folder / name)
    try:
        joined.bind(path)
        try:
            await asyncio.get_running_loop().sock_connect(joined, os.fspath(folder / SERVER_NAME))
        finally:
            with suppress(OSError):
                os.unlink(path)
    except BaseException:
        joined.close()
        raise
    return joined
