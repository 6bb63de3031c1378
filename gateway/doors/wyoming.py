"""Hosts the Wyoming dialect, Home Assistant's protocol for voice: one TCP port, beside HTTP and gRPC.

    connection ─► caller and telemetry ─► WyomingConnection (gateway.dialects.wyoming) ─► Host ─► pipeline

The protocol has neither keys nor encryption. So `gateway.dialects.wyoming.settings` opens the door to this machine
alone unless told otherwise, and not at all where API keys are set.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from gateway.access.access import Access
from gateway.access.caller import NOBODY, calling
from gateway.dialects.wyoming.connection import WyomingConnection, describe
from gateway.dialects.wyoming.settings import WYOMING_OPTION, WyomingSettings
from gateway.dialects.wyoming.wire import EventReader, EventStream
from gateway.errors import ConfigError, OverloadedError
from gateway.host import Host
from gateway.lifecycle.shutdown import ACCEPTED_AT_ONCE, let_many_wait
from gateway.processes.ports import open_port, port_of
from gateway.telemetry.call import WYOMING
from gateway.telemetry.telemetry import Telemetry
from servicekit.tasks import stop

logger = logging.getLogger(__name__)

NAME = "Wyoming"
_RETRY_S = 1.0


@asynccontextmanager
async def serving_wyoming(
    host: Host, settings: WyomingSettings, access: Access, telemetry: Telemetry
) -> AsyncIterator[int | None]:
    """Serve until the context is left, and yield the port; None: the door stays shut, and the log says why.

    It does so where the settings want it, and where nobody asked for the port by number and it is taken.

    Args:
        host: the gateway behind the door; its owner closes it.

    Raises:
        ConfigError: another program listens on the port.
    """
    if settings.shut_because is not None:
        logger.info("Wyoming is off: %s; --insecure-wyoming opens it all the same", settings.shut_because)
        yield None
        return
    try:
        bound = open_port(settings.host, settings.port, WYOMING_OPTION, is_shared=settings.shares_port)
    except ConfigError as error:
        is_taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if settings.is_port_asked_for or not is_taken:
            raise
        logger.warning("Wyoming is off: %s", error)
        yield None
        return
    port = port_of(bound)
    door = _Door(host, settings, access, telemetry)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(door.protocol, sock=each, backlog=ACCEPTED_AT_ONCE)
        for each in access.connections.listen(bound, NAME)
    ]
    let_many_wait(servers)
    logger.info("Wyoming (Home Assistant) on %s:%d", settings.host, port)
    try:
        yield port
    finally:
        for server in servers:
            server.close()
        await door.close()
        for server in servers:
            await server.wait_closed()


class _LateStart(asyncio.StreamReaderProtocol):
    """Serves a connection from its first bytes on: hundreds that say nothing cost the event loop little when they end.

    One that says nothing for `WireLimits.head_timeout_s` is dropped.
    """

    _silent: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._silent = transport

    def data_received(self, data: bytes) -> None:
        if self._silent is not None:
            super().connection_made(self._silent)
            self._silent = None
        super().data_received(data)

    def eof_received(self) -> bool:
        return self._silent is None and bool(super().eof_received())


@dataclass
class _Door:
    """The connections that are open."""

    host: Host
    settings: WyomingSettings
    access: Access
    telemetry: Telemetry
    _open: dict[asyncio.Task[None], WyomingConnection] = field(default_factory=dict, init=False)

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """Make the protocol of one connection."""
        reader, is_full = EventReader(self.settings.max_event_bytes), self.access.connections.is_full(NAME)
        return (asyncio.StreamReaderProtocol if is_full else _LateStart)(reader, self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; what fails in it ends nothing else."""
        # Pings find a peer that vanished, and what it used is freed.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits, settings = self.host.limits, self.settings
        assert isinstance(reader, EventReader)
        events = EventStream(reader, writer, limits.reader_timeout_s)
        counted = self.access.connections.of(writer.transport)
        counted.greeted()
        counted.on_drop = writer.transport.abort
        reader.hold = counted.hold
        reader.tell()  # what came with the first bytes
        if self.access.connections.is_full(NAME):
            await events.refuse(OverloadedError("all connections are in use; try again later", retry_after_s=_RETRY_S))
            await events.close()
            return
        task = asyncio.current_task()
        assert task is not None
        info = partial(describe, self.host, settings.languages)
        connection = self._open[task] = WyomingConnection(
            self.host, events, info, settings.idle_timeout_s, partial(self.access.connections.set_idle, counted)
        )
        caller = self.access.caller_without_key((writer.get_extra_info("peername") or (NOBODY,))[0])
        try:
            with self.telemetry.serving(WYOMING, "Wyoming connection", None), calling(caller):
                await connection.serve()
        finally:
            del self._open[task]

    async def close(self) -> None:
        """Let speech under way end, for as long as the settings say; then leave nothing."""
        if not self._open:
            return
        for connection in self._open.values():
            connection.finish()
        tasks = set(self._open)
        _, late = await asyncio.wait(tasks, timeout=self.settings.grace_s)
        await stop(*late)
