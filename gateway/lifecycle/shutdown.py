"""How the gateway stops without cutting anybody off, and gives memory back while it rests.

    SIGTERM ─► /readyz says no ─► drain_delay_s: requests still come ─► no new speech ─► streams end ─► doors close

A second SIGTERM, or an interrupt, closes the doors at once. A process that hangs on its way is ended by a watchdog.

The C library keeps most of what requests have freed, in a heap for each thread; gRPC and the codecs have many threads.
Measured on one process after 20 clients had each reset some 2000 gRPC calls: 391 MiB, of which 116 were left when the
rest had gone back. That took 17 ms, in which threads that allocate wait; it takes less than 1 ms when little was freed.
So another thread does it, and while there are streams that would wait only if memory has grown by much: an attack may
make hundreds of MiB of it in seconds.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import FrameType

import uvicorn

from gateway.lifecycle.gate import Gate
from gateway.lifecycle.readiness import Readiness
from servicekit.process import end_soon, resident_bytes, return_freed_memory
from servicekit.timeouts import timeout

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 4
"""Connections that the event loop takes before it turns to streams under way: a storm's take seconds all together."""
MAX_UNACCEPTED = 2048
"""Connections that wait in the kernel to be taken."""
DATE_INTERVAL_S = 1.0
"""Seconds between two looks at the clock for the header `date`."""


def let_many_wait(servers: Iterable[asyncio.AbstractServer]) -> None:
    """Have the kernel keep `MAX_UNACCEPTED` connections of servers that were made with `ACCEPTED_AT_ONCE`.

    asyncio takes as many connections at once as it has the kernel keep, unless the kernel is told later.
    """
    for server in servers:
        for each in server.sockets:  # type: ignore[attr-defined]
            with each.dup() as listening:
                listening.listen(MAX_UNACCEPTED)


async def drain(gate: Gate, readiness: Readiness, delay_s: float, timeout_s: float) -> None:
    """Return when no stream is under way, or when it has taken too long.

    Args:
        delay_s: seconds that they may take to notice.
        timeout_s: how long streams may then take to end.
    """
    readiness.withdraw("this gateway is being stopped; ask another one")
    await asyncio.sleep(delay_s)
    gate.drain()
    logger.info("draining: %d streams under way", gate.speaking)
    try:
        async with timeout(timeout_s):
            await gate.until_idle()
    except asyncio.TimeoutError:
        logger.warning("%d streams did not end within %.0f s; leaving", gate.speaking, timeout_s)


class DrainingServer(uvicorn.Server):
    """An HTTP server that lets streams end before a SIGTERM closes its doors."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Callable[[], Awaitable[None]],
        *,
        drain_s: float,
        close_s: float,
        ignores_interrupts: bool = False,
    ) -> None:
        """Serve as the config says; `drain` is awaited once, on the first SIGTERM.

        Args:
            drain_s: most seconds that takes.
            close_s: most seconds that the doors then take to close; a process that still lives after that is ended.
            ignores_interrupts: whether another process answers the terminal's interrupts.
        """
        super().__init__(config)
        self._drain_s, self._close_s = drain_s, close_s
        self._ignores_interrupts = ignores_interrupts
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = asyncio.Event()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Open the doors."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)  # type: ignore[arg-type]
        let_many_wait(self.servers)

    async def main_loop(self) -> None:
        """Keep the time for the header `date`, until told to leave: uvicorn looks ten times a second if it was."""
        while not await self.on_tick(0):
            with suppress(asyncio.TimeoutError):
                async with timeout(DATE_INTERVAL_S):
                    await self._leaving.wait()

    def leave(self) -> None:
        """Close the doors; may be called by a signal's handler."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._leaving.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer a signal; called by Python between any two instructions of the main thread."""
        if sig == signal.SIGINT and self._ignores_interrupts:
            return
        if sig == signal.SIGTERM and self._loop is not None and self.started and self._draining is None:
            end_soon(self._drain_s + self._close_s)
            self._loop.call_soon_threadsafe(self._begin_to_drain)
        else:
            end_soon(self._close_s)
            super().handle_exit(sig, frame)
            self.leave()

    def _begin_to_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain_and_exit(), name="drain")

    async def _drain_and_exit(self) -> None:
        try:
            await self._drain()
        finally:
            self.leave()


LOOK_INTERVAL_S, LOOKS_OF_REST = 1.0, 5
"""Seconds between two looks at whether somebody speaks, and how many looks in a row make a rest."""
REST_AFTER_S = LOOK_INTERVAL_S * (LOOKS_OF_REST + 1)
"""Most seconds from the end of the last stream until memory goes back."""
GROWTH_BYTES = 64 * 1024 * 1024
"""Memory that has grown by so much since it last went back goes back although somebody speaks."""


async def return_memory_at_rest(
    speaking: Callable[[], int],
    give_back: Callable[[], None] = return_freed_memory,
    look_interval_s: float = LOOK_INTERVAL_S,
    resident: Callable[[], int] = resident_bytes,
) -> None:
    """Give memory back after every few looks at which nobody spoke or when it has grown, until it is cancelled.

    Args:
        speaking: returns the number of streams under way.
        give_back: called in another thread.
        resident: returns the bytes that this process holds.
    """
    looks, least = 0, resident()
    while True:
        await asyncio.sleep(look_interval_s)
        looks = 0 if speaking() else looks + 1
        held = resident()
        least = min(least, held)
        if looks == LOOKS_OF_REST or held - least > GROWTH_BYTES:
            looks = 0
            await asyncio.to_thread(give_back)
            least = resident()
