"""One process among several that serve one gateway's ports.

A worker and its parent talk in single bytes over a socket pair: a worker says that it turns, that its doors are open
and that it is warm; the parent, that all are warm and that the doors must close. The end of the socket is the end of
the other. All else that processes share is in the `CallerLedger`, which they write into themselves. They share no
admission: the services say how many streams they serve, and refuse those of any process beyond it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from prometheus_client import CollectorRegistry

from gateway.access.access import Access
from gateway.ledger import CallerLedger
from gateway.processes.metrics import gathered_registry, merged, snapshot
from gateway.telemetry.exposition import BEAT_INTERVAL_S
from servicekit.tasks import running_meanwhile

logger = logging.getLogger(__name__)

BEAT, OPENED, WARM, LEAVE = b"b", b"o", b"w", b"l"
"""What is said over the socket pair, a byte each."""
TELL_INTERVAL_S = 0.05
"""Seconds until other processes know of text that waits here."""


class Worker:
    """This process's part in the gateway of several."""

    def __init__(self, number: int, end: socket.socket, ledger: CallerLedger) -> None:
        """Say nothing yet.

        Args:
            number: of this process, from 1.
            end: of the socket pair that leads to the parent.
            ledger: the account of all processes.
        """
        self.number = number
        self.ledger = ledger
        self.on_leave: Callable[[], None] = lambda: None
        """Called when the parent wants the doors closed at once."""
        self.on_orphaned: Callable[[], None] = lambda: None
        """Called when the parent is gone."""
        self._end = end
        self._registry: CollectorRegistry | None = None
        self._is_warm = self._is_orphaned = False

    @property
    def is_warm(self) -> bool:
        """See `ReadyTogether.is_warm`."""
        return self._is_warm

    def note_warm(self) -> None:
        """See `ReadyTogether.note_warm`."""
        self._say(WARM)

    def note_opened(self) -> None:
        """Tell that the doors are open."""
        self._say(OPENED)

    def gathered(self, registry: CollectorRegistry) -> CollectorRegistry:
        """Return a registry with the metrics of all processes; this one's own are in `registry`."""
        self._registry = registry
        return gathered_registry(lambda: merged({**self.ledger.metrics(), self.number: snapshot(registry)}))

    @asynccontextmanager
    async def serving(self, access: Access) -> AsyncIterator[None]:
        """Talk to the parent and tell the others until the context is left."""
        self._end.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end, self._hear)
        try:
            async with running_meanwhile(self._keep_telling(access)), running_meanwhile(self._keep_beating()):
                yield
        finally:
            loop.remove_reader(self._end)
            self._end.close()
            if self._is_orphaned:
                self.ledger.remove()

    async def _keep_telling(self, access: Access) -> None:
        while True:
            with _going_on():
                access.tell_texts()
            await asyncio.sleep(TELL_INTERVAL_S)

    async def _keep_beating(self) -> None:
        while True:
            self._say(BEAT)
            with _going_on():
                if self._registry is not None:
                    self.ledger.tell_metrics({self.number: await asyncio.to_thread(snapshot, self._registry)})
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _say(self, what: bytes) -> None:
        # NOTE: a parent that is gone, or stands still, is no fault of ours.
        with suppress(OSError):
            self._end.send(what)

    def _hear(self) -> None:
        try:
            heard = self._end.recv(1024)
        except OSError:
            heard = b""
        if not heard:
            asyncio.get_running_loop().remove_reader(self._end)
            self._is_orphaned = True
            self.on_orphaned()
        self._is_warm = self._is_warm or WARM in heard
        if LEAVE in heard:
            self.on_leave()


@contextmanager
def _going_on() -> Iterator[None]:
    """Log what fails, as the next try may do."""
    try:
        yield
    except Exception:
        logger.exception("the other processes of this gateway can't be told what this one does")
