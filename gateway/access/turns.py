"""Parses what callers send in small pieces, and gives the event loop back to others between them.

    bytes come ─► piece ─► piece ─ the turn's time is over ─► others' streams go on ─► piece ... ─► all is read

A read of 256 KiB can be 40,000 chunks or frames of a byte, and a parser takes 20 us for each: a second without a turn
for anybody else. All connections of a process share one time in each turn, as attackers come in numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

PIECE_BYTES = 1024
"""Most bytes that are parsed before anybody looks at the time: of chunks of a byte, 4 ms."""
_TURN_S = 0.002
"""Seconds of parsing in one turn of the event loop."""


class Turns:
    """Deals out the time for parsing."""

    def __init__(self) -> None:
        self._begun: deque[Backlog] = deque()
        """Of which nothing is parsed yet."""
        self._left: deque[Backlog] = deque()
        """Of which pieces are left; they wait for those that begin, but for every second piece."""
        self._has_begun_one = False
        """Whether the latest piece was the first of its backlog."""
        self._spent_s = 0.0
        """Time that was parsed in this turn."""
        self._handle: asyncio.Handle | None = None
        """Begins the next turn."""
        self._is_serving = False

    def go_on(self, backlog: Backlog) -> None:
        """Have a piece parsed at once if this turn has time left, and all others in later turns."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._begin)
        self._begun.append(backlog)
        self._serve()

    def _begin(self) -> None:
        self._spent_s, self._handle = 0.0, None
        self._serve()
        if self._begun or self._left:  # all others have the event loop for as long
            self._handle = asyncio.get_running_loop().call_later(self._spent_s, self._begin)

    def _serve(self) -> None:
        if self._is_serving:  # a parser has begun another backlog, as of a WebSocket
            return
        self._is_serving = True
        while self._spent_s < _TURN_S and (self._begun or self._left):
            began_s = time.perf_counter()
            self._has_begun_one = bool(self._begun) and not (self._has_begun_one and self._left)
            backlog = (self._begun if self._has_begun_one else self._left).popleft()
            if backlog.take_piece():
                self._left.append(backlog)
            self._spent_s += time.perf_counter() - began_s
        self._is_serving = False


@dataclass(eq=False)
class Backlog:
    """What came from one connection and is not parsed yet."""

    turns: Turns
    transport: asyncio.Transport
    """Is not read while there is a backlog."""
    parse: Callable[[bytes], None]
    """Gets the pieces in their order."""
    resume: Callable[[], None]
    """Is called when all is parsed; reads the transport again, unless there is another reason not to."""
    _left: bytearray = field(default_factory=bytearray, init=False)
    _is_waiting: bool = field(default=False, init=False)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return len(self._left)

    def add(self, data: bytes) -> None:
        """Take what came."""
        self._left += data
        if not self._is_waiting:
            self._is_waiting = True
            self.turns.go_on(self)
        if self._is_waiting:
            self.transport.pause_reading()

    def take_piece(self) -> bool:
        """Parse some bytes; return whether there are more."""
        if not self.transport.is_closing():
            piece = bytes(self._left[:PIECE_BYTES])
            del self._left[:PIECE_BYTES]
            try:
                self.parse(piece)
            except Exception:
                logger.exception("a connection is closed, as it can't be read")
                self.transport.abort()
        if self.transport.is_closing():
            self._left.clear()
        elif not self._left:
            self.resume()
        self._is_waiting = bool(self._left)
        return self._is_waiting
