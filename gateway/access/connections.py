"""Counts the connections of every door when they are accepted, and what they have sent of unfinished messages.

    listening socket ─ accept ─► counted ─► asks something ─► idle again ─► ... ─► closed
                          └ its peer has too many ─► closed     └ room is needed ─► the one idle longest is closed

A connection on which nothing is asked holds room only until somebody needs it. So connections that ask nothing, or
whose callers have no key, keep nobody out.

A message holds memory before it is whole, and before any code can tell whose it is or refuse it. All unfinished
messages of a process have one bound. If they pass it, the peer that holds most of them loses the connection whose
message was begun first.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gateway.access.turns import Turns

logger = logging.getLogger(__name__)


BODY_BYTES_PER_S = 16 * 1024
"""Slowest rate at which a body may come."""


@dataclass(frozen=True)
class WireLimits:
    """Limits on what one peer may send at once, in every dialect; each dialect has smaller limits of its own."""

    max_socket_message_bytes: int = 4 * 1024 * 1024
    """Most bytes of a WebSocket message; room for a voice prompt in base64."""
    max_grpc_message_bytes: int = 4 * 1024 * 1024
    """Most bytes of a gRPC message, which is gRPC's own default; room for 30 s of a voice prompt at 48 kHz."""
    max_unfinished_bytes: int = 128 * 1024 * 1024
    """Most bytes of all messages and bodies that are not whole yet, of all doors together."""
    max_header_bytes: int = 16 * 1024
    """Most bytes of an HTTP request's head, its first line included."""
    max_connections: int = 1024
    """Most open connections of each door, WebSockets among them; further HTTP requests are refused. gRPC calls have the
    same bound."""
    max_connections_per_peer: int = 768
    """Most connections of one address at each door; the rest stays for other addresses."""
    head_timeout_s: float = 10.0
    """Seconds for the head of an HTTP request, from the connection or its first byte; for a TLS handshake too."""
    body_timeout_s: float = 30.0
    """Seconds for the body, plus what it takes at `BODY_BYTES_PER_S`. Seconds for the first message of a gRPC call."""


class Connections:
    """All connections of one process; told apart by door, peer, and whether they ask something."""

    def __init__(self, limits: WireLimits | None = None) -> None:
        self.limits = limits or WireLimits()
        self.turns = Turns()
        """In which what they send is parsed."""
        self.unfinished_bytes = 0
        """Bytes of all messages that are not whole yet."""
        self._open: dict[int, Connection] = {}
        self._of_door = Counter[str]()
        self._of_peer = Counter[tuple[str, str]]()
        self._idle: defaultdict[str, OrderedDict[Connection, None]] = defaultdict(OrderedDict)

    def listen(self, bound: Iterable[socket.socket], door: str) -> list[Listener]:
        """Take over bound sockets, so that they count what they accept.

        Args:
            bound: not used any more afterwards.
        """
        return [Listener.of(each, door, self) for each in bound]

    def of(self, transport: asyncio.BaseTransport) -> Connection:
        """Return the connection of a transport that a `Listener` accepted."""
        return self._open[transport.get_extra_info("socket").fileno()]

    def join(self, connection: Connection) -> bool:
        """Count a new connection, which is idle; False if there is no room for it."""
        door, peer = connection.door, connection.peer
        while self._of_peer[door, peer] >= self.limits.max_connections_per_peer and self._drop_idle(door, peer):
            pass
        # NOTE: the last place is for those that are told there is none.
        while self._of_door[door] + 1 >= self.limits.max_connections and self._drop_idle(door):
            pass
        if self._of_peer[door, peer] >= self.limits.max_connections_per_peer or self.is_full(door):
            return False
        self._open[connection.fileno()] = connection
        connection.is_counted = True
        self._of_door[door] += 1
        self._of_peer[door, peer] += 1
        self.set_idle(connection, True)
        return True

    def is_full(self, door: str) -> bool:
        """Whether a door has all the connections that it may have."""
        return self._of_door[door] >= self.limits.max_connections

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is gone; does nothing for one that is not counted."""
        if not connection.is_counted:
            return
        connection.is_counted = False
        del self._open[connection.fileno()]
        self.set_idle(connection, False)
        self.unfinished_bytes -= connection.unfinished_bytes
        connection.unfinished_bytes = 0
        self._of_door[connection.door] -= 1
        self._of_peer[connection.door, connection.peer] -= 1
        if not self._of_peer[connection.door, connection.peer]:
            del self._of_peer[connection.door, connection.peer]

    def set_idle(self, connection: Connection, value: bool) -> None:
        """Note whether nothing is asked on a connection."""
        idle = self._idle[connection.door]
        if not value:
            idle.pop(connection, None)
        elif connection.is_counted:
            idle.setdefault(connection)

    def make_room(self) -> None:
        """Drop connections until the unfinished messages are within their bound."""
        while self.unfinished_bytes > self.limits.max_unfinished_bytes:
            held = Counter[str]()
            for each in self._open.values():
                held[each.peer] += each.unfinished_bytes
            peer, count = held.most_common(1)[0]
            theirs = (each for each in self._open.values() if each.peer == peer and each.unfinished_bytes)
            oldest = min(theirs, key=lambda each: each.began_s)
            got = f"{self.unfinished_bytes} bytes of unfinished messages, {count} of them from {peer}"
            logger.warning("got %s; its oldest connection (%s) is closed", got, oldest.door)
            oldest.drop()

    def _drop_idle(self, door: str, peer: str | None = None) -> bool:
        for each in self._idle[door]:
            if peer in (None, each.peer):
                each.drop()
                return True
        return False


class Connection(socket.socket):
    """An accepted socket, counted until it is closed."""

    owner: Connections
    is_counted: bool
    door: str
    peer: str
    """Address of the other side; empty where it has none."""
    unfinished_bytes: int
    """Bytes of the message, or the messages, that are not whole yet."""
    began_s: float
    """When the oldest of them began."""
    on_drop: Callable[[], None] | None
    """Ends what uses the socket; None: the other side's end of it is shut."""
    greeting: asyncio.TimerHandle | None
    """Drops a connection that says nothing."""

    @classmethod
    def of(cls, accepted: socket.socket, peer: str, door: str, owner: Connections) -> Connection:
        """Take over an accepted socket; it is not counted yet."""
        made = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        made.owner, made.door, made.peer = owner, door, peer
        made.is_counted, made.unfinished_bytes, made.began_s, made.on_drop = False, 0, 0.0, None
        made.greeting = asyncio.get_running_loop().call_later(owner.limits.head_timeout_s, made.drop)
        return made

    def greeted(self) -> None:
        """Note that the handshake is over: from here on the door has deadlines of its own."""
        if self.greeting is not None:
            self.greeting.cancel()
            self.greeting = None

    def hold(self, count: int) -> None:
        """Note how many bytes of unfinished messages came; others may be dropped for them, and this one too."""
        if not self.is_counted:
            return
        if count and not self.unfinished_bytes:
            self.began_s = time.monotonic()
        self.owner.unfinished_bytes += count - self.unfinished_bytes
        self.unfinished_bytes = count
        if self.owner.unfinished_bytes > self.owner.limits.max_unfinished_bytes:
            self.owner.make_room()

    def drop(self) -> None:
        """End it at once."""
        self.greeted()
        self.owner.leave(self)
        if self.on_drop is not None:
            self.on_drop()
            return
        try:
            self.shutdown(socket.SHUT_RDWR)  # its transport closes it
        except OSError:
            self.close()

    def close(self) -> None:
        self.greeted()
        self.owner.leave(self)
        self.on_drop = None
        super().close()


class Listener(socket.socket):
    """A listening socket that counts what it accepts; asyncio's servers take it as they take any other."""

    owner: Connections
    door: str

    @classmethod
    def of(cls, bound: socket.socket, door: str, owner: Connections) -> Listener:
        """Take over a bound socket."""
        made = cls(bound.family, bound.type, bound.proto, fileno=bound.detach())
        made.owner, made.door = owner, door
        return made

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`.

        Raises:
            ConnectionAbortedError: there is no room for the connection; it is closed.
        """
        accepted, address = super().accept()
        peer = str(address[0]) if isinstance(address, tuple) else ""
        connection = Connection.of(accepted, peer, self.door, self.owner)
        if not self.owner.join(connection):
            connection.close()
            raise ConnectionAbortedError(f"{peer or 'the peer'} has too many connections")
        return connection, address
