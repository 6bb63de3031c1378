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
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial

from gateway.access.access import Access
from gateway.access.caller import address_of, calling
from gateway.dialects.wyoming.connection import WyomingConnection
from gateway.dialects.wyoming.info import describe
from gateway.dialects.wyoming.settings import WyomingSettings
from gateway.dialects.wyoming.wire import EventStream
from gateway.errors import ConfigError, OverloadedError
from gateway.host import Host
from gateway.telemetry.call import WYOMING, Call, serving
from gateway.telemetry.telemetry import Telemetry
from servicekit.tasks import stop

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


@asynccontextmanager
async def serving_wyoming(
    host: Host, settings: WyomingSettings, access: Access | None = None, telemetry: Telemetry | None = None
) -> AsyncIterator[int | None]:
    """Serve until the context is left, and yield the port; None: the door stays shut, and the log says why.

    It does so where the settings want it, and where nobody asked for the port by number and it is taken.

    Args:
        host: the gateway behind the door; its owner closes it.
        settings: how the door is opened.
        access: knows callers' limits; None: there are none.
        telemetry: is told of every connection.

    Raises:
        ConfigError: another program listens on the port.
    """
    if settings.shut_because is not None:
        logger.info("Wyoming is off: %s; --insecure-wyoming opens it all the same", settings.shut_because)
        yield None
        return
    door = _Door(host, settings, access, telemetry)
    try:
        server = await asyncio.start_server(
            door.serve,
            settings.host,
            settings.port,
            limit=settings.max_event_bytes,
            reuse_port=settings.shares_port or None,
        )
    except OSError as error:
        if settings.is_port_asked_for or error.errno != errno.EADDRINUSE:
            raise ConfigError(_cannot_listen(settings, error)) from error
        logger.warning("Wyoming is off: %s", _cannot_listen(settings, error))
        yield None
        return
    port = int(server.sockets[0].getsockname()[1])
    logger.info("Wyoming (Home Assistant) on %s:%d", settings.host, port)
    try:
        yield port
    finally:
        server.close()
        await door.close()
        await server.wait_closed()


def _cannot_listen(settings: WyomingSettings, error: OSError) -> str:
    got = f"can't listen on {settings.host}:{settings.port} ({error.strerror})"
    return f"{got}; stop what listens there, or give another --wyoming-port, 0 for none"


class _Door:
    """The connections that are open."""

    def __init__(
        self, host: Host, settings: WyomingSettings, access: Access | None, telemetry: Telemetry | None
    ) -> None:
        self._host = host
        self._settings = settings
        self._access = access
        self._telemetry = telemetry
        self._open: dict[asyncio.Task[None], WyomingConnection] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; what fails in it ends nothing else."""
        # Pings find a peer that vanished, and what it used is freed.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits, settings = self._host.limits, self._settings
        events = EventStream(reader, writer, settings.max_event_bytes, limits.reader_timeout_s)
        if len(self._open) >= settings.max_connections:
            got = f"{len(self._open)} connections are open, which is the limit"
            await events.refuse(OverloadedError(f"{got}; try again later", retry_after_s=_RETRY_S))
            await events.close()
            return
        task = asyncio.current_task()
        assert task is not None
        info = partial(describe, self._host, settings.languages)
        connection = self._open[task] = WyomingConnection(self._host, events, info, settings.idle_timeout_s)
        try:
            with self._on_behalf_of(address_of(writer.get_extra_info("peername"))):
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
        _, late = await asyncio.wait(tasks, timeout=self._settings.grace_s)
        await stop(*late)

    def _on_behalf_of(self, address: str) -> AbstractContextManager[object]:
        stack = ExitStack()
        if self._access is not None:
            stack.enter_context(calling(self._access.caller_without_key(address)))
        if self._telemetry is not None:
            call = Call(WYOMING, self._telemetry.tracer.begin("Wyoming connection", None))
            stack.push(lambda kind, error, traceback: call.span.end(error))
            stack.enter_context(serving(call))
        return stack
