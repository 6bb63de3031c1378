"""A TCP proxy between two processes that can be made to fail: cut, freeze, crawl, refuse, halve, put garbage in."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from enum import Enum

HOST = "127.0.0.1"
_READ_BYTES = 16 * 1024
_CRAWL_PIECE_BYTES = 64
_GARBAGE_BYTES = 200
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, 0 s; closing then sends a reset."""


class Direction(str, Enum):
    """Which way bytes go."""

    UP = "up"
    """Bytes to the service."""
    DOWN = "down"
    """Bytes from the service."""


class FaultyProxy:
    """Listens on one port and connects to another; every connection goes through until told otherwise."""

    def __init__(self, upstream_port: int, rng: random.Random) -> None:
        """Listen nowhere yet.

        Args:
            upstream_port: of the service, on this machine.
            rng: draws garbage.
        """
        self._upstream_port = upstream_port
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._flows: set[asyncio.Task[bool]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._crawl_bytes_per_s: float | None = None
        self._is_refusing = False
        self._halved: set[Direction] = set()
        self._garbled: set[Direction] = set()

    async def start(self, port: int) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, HOST, port)

    async def close(self) -> None:
        """Stop listening and drop everything."""
        if self._server is not None:
            self._server.close()
        self._open.set()
        self.cut()
        for flow in list(self._flows):
            flow.cancel()
        await asyncio.gather(*self._flows, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            _reset(writer)

    async def freeze(self, seconds: float) -> None:
        """Let nothing through for a while, new connections included."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._open.set()

    async def crawl(self, bytes_per_s: float, seconds: float) -> None:
        """Let bytes through slowly for a while, each connection for itself."""
        self._crawl_bytes_per_s = bytes_per_s
        try:
            await asyncio.sleep(seconds)
        finally:
            self._crawl_bytes_per_s = None

    async def refuse(self, seconds: float) -> None:
        """Reset all connections, and new ones for a while."""
        self._is_refusing = True
        self.cut()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._is_refusing = False

    def halve(self, direction: Direction) -> None:
        """Pass half of the next piece on, and reset that connection."""
        self._halved.add(direction)

    def garble(self, direction: Direction) -> None:
        """Put garbage before the next piece."""
        self._garbled.add(direction)

    def disarm(self) -> None:
        """Forget what has not happened yet."""
        self._halved.clear()
        self._garbled.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._is_refusing:
                return
            await self._open.wait()
            up_reader, up_writer = await asyncio.open_connection(HOST, self._upstream_port)
        except OSError:
            return
        finally:
            if self._is_refusing or writer.is_closing():
                self._drop(writer)
        await self._relay(reader, writer, up_reader, up_writer)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._writers.add(up_writer)
        flows = [
            asyncio.create_task(self._flow(reader, up_writer, Direction.UP)),
            asyncio.create_task(self._flow(up_reader, writer, Direction.DOWN)),
        ]
        self._flows.update(flows)
        try:
            for flow in asyncio.as_completed(flows):
                if not await flow:
                    break
        finally:
            for each in flows:
                each.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
            self._flows.difference_update(flows)
            self._drop(writer)
            self._drop(up_writer)

    async def _flow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> bool:
        """Pass bytes on until their end; False if the connection broke, or is to break."""
        try:
            while data := await reader.read(_READ_BYTES):
                await self._open.wait()
                if direction in self._garbled:
                    self._garbled.discard(direction)
                    data = self._rng.randbytes(_GARBAGE_BYTES) + data
                if direction in self._halved:
                    self._halved.discard(direction)
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    return False
                await self._pass(writer, data)
            writer.write_eof()
        except OSError:
            return False
        return True

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while self._crawl_bytes_per_s is not None and data:
            piece, data = data[:_CRAWL_PIECE_BYTES], data[_CRAWL_PIECE_BYTES:]
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(len(piece) / self._crawl_bytes_per_s)
        writer.write(data)
        await writer.drain()

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that its peer sees a reset."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
