"""How the HTTP server takes many callers at once."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from typing import Any

import uvicorn

from gateway.lifecycle.shutdown import ACCEPTED_AT_ONCE, DATE_INTERVAL_S, DrainingServer
from tests.workers import free_ports

CALLERS = 40


async def test_of_many_who_connect_at_once_a_few_are_taken_at_a_time_and_nobody_is_lost() -> None:
    taken: list[asyncio.Transport] = []

    class Door(asyncio.Protocol):
        def __init__(self, **parts: Any) -> None:
            pass

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            taken.append(transport)

    server = await _started(DrainingServer, http=Door, backlog=ACCEPTED_AT_ONCE)
    port = server.config.port
    callers = [socket.create_connection(("127.0.0.1", port), timeout=1.0) for _ in range(CALLERS)]
    steps = [0]
    while len(taken) < CALLERS:
        await asyncio.sleep(0)
        steps.append(len(taken))
    assert max(after - before for before, after in pairwise(steps)) <= ACCEPTED_AT_ONCE
    for caller in callers:
        caller.close()
    for transport in taken:
        transport.abort()
    server.servers[0].close()


async def test_it_leaves_at_once_when_told_to_and_seldom_wakes_before() -> None:
    ticks = []

    class CountingServer(DrainingServer):
        async def on_tick(self, counter: int) -> bool:
            ticks.append(counter)
            return await super().on_tick(counter)

    server = await _started(CountingServer)
    running = asyncio.create_task(server.main_loop())
    await asyncio.sleep(0.5)
    assert len(ticks) == 1 and b"date" in dict(server.server_state.default_headers)
    server.leave()
    await asyncio.wait_for(running, DATE_INTERVAL_S / 4)
    server.servers[0].close()


async def _drained() -> None:
    """Have no streams to wait for."""


async def _started(kind: type[DrainingServer], **options: Any) -> DrainingServer:
    (port,) = free_ports(1)
    config = uvicorn.Config(_nothing, port=port, lifespan="off", log_config=None, **options)
    server = kind(config, _drained, drain_s=0.0, close_s=0.0)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    return server


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing."""
