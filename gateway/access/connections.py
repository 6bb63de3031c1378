"""Limits the HTTP door's connections: how many a peer may have, how slow it may be, and which one is closed for room.

    connected ─ head complete ─► request ─ body complete, answered ─► idle ─ next head ─► request
        └ too slow ─► closed         └ body too slow ─► closed         └ too long, or room is needed ─► closed

A connection on which nothing is asked holds room only until somebody needs it: the one that waits longest is closed. So
connections that ask nothing, or whose callers have no key, keep nobody out.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


@dataclass(frozen=True)
class ConnectionLimits:
    """What the peers of the HTTP door may take."""

    connections: int = 1024
    """Most open connections, WebSockets among them."""
    per_peer: int = 768
    """Most connections of one address; the rest stays for other addresses."""
    head_s: float = 10.0
    """Seconds from the connection, or from a request's first byte, to the end of its head."""
    body_grace_s: float = 30.0
    """Seconds from the head to the end of the body, beside the time that the body takes at `body_bytes_per_s`."""
    body_bytes_per_s: int = 16 * 1024
    """Slowest rate at which a body may come."""


class Connections:
    """All connections of one door; made before the server, which calls `protocol` for each."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Begin without any."""
        self.limits = limits
        self._of_peer = Counter[str]()
        self._idle = OrderedDict[BoundedProtocol, None]()

    def protocol(self, **parts: Any) -> BoundedProtocol:
        """Make the protocol of one connection; for `uvicorn.Config(http=...)`.

        Args:
            parts: what uvicorn gives to its own protocols.
        """
        return BoundedProtocol(self, parts)

    def join(self, protocol: BoundedProtocol, peer: str) -> bool:
        """Count a new connection; False if its peer has too many."""
        self._of_peer[peer] += 1
        if self._of_peer[peer] > self.limits.per_peer:
            return False
        # NOTE: uvicorn refuses requests from the limit on, the connection that asks included.
        while len(protocol.connections) + 1 >= self.limits.connections and self._idle:
            self._idle.popitem(last=False)[0].drop()
        return True

    def leave(self, protocol: BoundedProtocol, peer: str) -> None:
        """Forget a connection that is gone."""
        self._idle.pop(protocol, None)
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def is_idle(self, protocol: BoundedProtocol, value: bool) -> None:
        """Note whether nothing is asked on a connection."""
        if not value:
            self._idle.pop(protocol, None)
        elif protocol not in self._idle:
            self._idle[protocol] = None


class _Awaited(Enum):
    """What a connection's peer is to send."""

    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"
    """Nothing is awaited: a request is being answered, or the next may come; uvicorn bounds that time."""


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines, for one connection."""

    def __init__(self, owner: Connections, parts: dict[str, Any]) -> None:
        """Begin to count when the connection is made."""
        super().__init__(**parts)
        self._owner = owner
        self._peer = ""
        self._awaited = _Awaited.NOTHING
        self._since_s = 0.0
        self._received = 0
        """Bytes received since `_since_s`."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        is_welcome = self._owner.join(self, self._peer)
        super().connection_made(cast(asyncio.Transport, transport))
        if not is_welcome:
            self.drop()
            return
        self._owner.is_idle(self, True)
        self._await(_Awaited.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._await(_Awaited.NOTHING)
        self._owner.leave(self, self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; what is read decides how long the next bytes may take."""
        self._received += len(data)
        super().data_received(data)
        self._look(_Awaited.HEAD)

    def on_response_complete(self) -> None:
        """Note that the answer is sent."""
        super().on_response_complete()
        self._look(_Awaited.NOTHING)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the WebSocket's protocol, which has deadlines of its own."""
        self._await(_Awaited.NOTHING)
        self._owner.is_idle(self, False)
        super().handle_websocket_upgrade(event)
        socket = cast(asyncio.Protocol, self.transport.get_protocol())
        lost = socket.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            self._owner.leave(self, self._peer)
            lost(exc)

        socket.connection_lost = connection_lost  # type: ignore[method-assign]

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self._owner.is_idle(self, False)
        self.transport.abort()

    def _look(self, without_request: _Awaited) -> None:
        """Watch for what the peer must send now; `without_request` if no request is under way."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        is_asked = self.cycle is not None and not self.cycle.response_complete
        self._owner.is_idle(self, not is_asked)
        if self.cycle is not None and self.cycle.more_body:
            self._await(_Awaited.BODY)
        else:
            self._await(_Awaited.NOTHING if is_asked else without_request)

    def _await(self, awaited: _Awaited) -> None:
        if awaited is self._awaited:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._awaited, self._since_s, self._received = awaited, self.loop.time(), 0
        if awaited is not _Awaited.NOTHING:
            self._check()

    def _check(self) -> None:
        """Drop a peer that is too slow, or look again when it may be."""
        limits, now_s = self._owner.limits, self.loop.time()
        if self._awaited is _Awaited.HEAD:
            due_s = self._since_s + limits.head_s
        elif self.flow.read_paused:
            due_s = now_s + limits.body_grace_s  # we are slow, not the peer
        else:
            due_s = self._since_s + limits.body_grace_s + self._received / limits.body_bytes_per_s
        if now_s >= due_s:
            self.drop()
        else:
            self._timer = self.loop.call_at(due_s, self._check)


class RefusableSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol of a WebSocket, for which a refused handshake is no error of ours."""

    async def send(self, message: Any) -> None:
        """Send a message; a refusal that is sent whole completes the handshake, and uvicorn does not say so."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
