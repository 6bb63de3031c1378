"""A client of HTTP that asks for speech and does not read it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

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
