"""uvicorn's protocols of the HTTP door with deadlines, and with what they hold counted.

connected ─ head complete ─► request ─ body complete, answered ─► idle ─ next head ─► request
    └ too slow ─► closed         └ body too slow ─► closed         └ too long, or room is needed ─► closed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.access.connections import BODY_BYTES_PER_S, Connection, Connections
from gateway.access.turns import Backlog

_FRAME_BYTES = 64
"""Bytes that a fragment of a message takes beside its data."""


class _Awaited(Enum):
    """What a connection's peer is to send."""

    HEAD = "head"
    BODY = "body"
    REST = "rest"
    """The rest of a body whose request is answered already: nobody reads it, however fast it comes."""
    NOTHING = "nothing"
    """Nothing is awaited: a request is being answered, or the next may come; uvicorn bounds that time."""


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines, for one connection."""

    _counted: Connection

    def __init__(self, owner: Connections, **parts: Any) -> None:
        super().__init__(**parts)
        self.access_logger = cast(Any, SimpleNamespace(info=partial(self._log_answer, self.access_logger.info)))
        self._limits = owner.limits
        self._owner = owner
        self._awaited = _Awaited.NOTHING
        self._since_s = 0.0
        self._received = 0
        """Bytes received since `_since_s`."""
        self._unfinished = 0
        """Bytes received since a request was whole, head and body."""
        self._timer: asyncio.TimerHandle | None = None

    def _log_answer(self, log: Callable[..., None], *line: Any) -> None:
        """Log an answer behind its first bytes, which uvicorn has wait; one with a request ID has records with more."""
        if "request_id" not in self.scope:
            self.loop.call_soon(log, *line)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._backlog = Backlog(self._owner.turns, self.transport, self._parse, self._resume)
        self._counted = self._owner.of(transport)
        self._counted.greeted()
        self._counted.on_drop = self._abort
        self._await(_Awaited.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(_Awaited.NOTHING)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self._unfinished += len(data)
        self._backlog.add(data)

    def _parse(self, data: bytes) -> None:
        """Read on; what is read decides how long the next bytes may take."""
        if (protocol := self.transport.get_protocol()) is not self:  # a WebSocket's, from its handshake on
            cast(asyncio.Protocol, protocol).data_received(data)
            return
        super().data_received(data)
        self._look(_Awaited.HEAD)

    def _resume(self) -> None:
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def on_response_complete(self) -> None:
        """Note that the answer is sent."""
        super().on_response_complete()
        self._look(_Awaited.NOTHING)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the WebSocket's protocol, which has deadlines of its own."""
        self._await(_Awaited.NOTHING)
        self._owner.set_idle(self._counted, False)
        super().handle_websocket_upgrade(event)

    def _abort(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _look(self, without_request: _Awaited) -> None:
        """Watch for what the peer must send now; `without_request` if no request is under way."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        is_asked = self.cycle is not None and not self.cycle.response_complete
        self._owner.set_idle(self._counted, not is_asked)
        if self.cycle is not None and self.cycle.more_body:
            self._await(_Awaited.BODY if is_asked else _Awaited.REST)
        else:
            if is_asked or without_request is _Awaited.NOTHING:
                self._unfinished = 0
            self._await(_Awaited.NOTHING if is_asked else without_request)
        self._counted.hold(self._unfinished)

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
        limits, now_s = self._limits, self.loop.time()
        if self._awaited is _Awaited.HEAD:
            due_s = self._since_s + limits.head_timeout_s
        elif self._awaited is _Awaited.REST:
            due_s = self._since_s + limits.body_timeout_s
        elif self.flow.read_paused:
            due_s = now_s + limits.body_timeout_s  # we are slow, not the peer
        else:
            due_s = self._since_s + limits.body_timeout_s + self._received / BODY_BYTES_PER_S
        if now_s < due_s:
            self._timer = self.loop.call_at(due_s, self._check)
        else:
            self._counted.drop()


class RefusableSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol of a WebSocket: what it holds is counted, and a refused handshake is no error of ours."""

    _counted: Connection

    def __init__(self, owner: Connections, **parts: Any) -> None:
        super().__init__(**parts)
        self._owner = owner
        self._message_bytes = 0
        """Bytes of the frames of a message whose last one has not come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._backlog = Backlog(self._owner.turns, self.transport, self._parse, self._resume)
        self._counted = self._owner.of(transport)
        self._counted.on_drop = self.transport.abort

    def data_received(self, data: bytes) -> None:
        self._backlog.add(data)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        self._counted.hold(len(self._backlog) + len(self.conn.reader.buffer) + self._message_bytes)

    def _resume(self) -> None:
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Any) -> None:
        """Take a further frame of a message."""
        self._count(event)
        super().handle_cont(event)

    def handle_text(self, event: Any) -> None:
        """Take the first frame of a message."""
        self._count(event)
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        """Take the first frame of a message."""
        self._count(event)
        super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        """Hand over a message that is whole."""
        self._message_bytes = 0
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Send a message; a refusal that is sent whole completes the handshake, and uvicorn does not say so."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def _count(self, frame: Any) -> None:
        self._message_bytes += len(frame.data) + _FRAME_BYTES
