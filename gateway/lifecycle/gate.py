"""Decides whether a stream may begin, before any service does work for it, and counts those that have begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.errors import NotReadyError
from gateway.lifecycle.capacity import Capacity, PlaceSource
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.places import Asker
from gateway.routing.replica import ReplicaStatus
from gateway.token2wav.routed import RoutedToken2Wav
from servicekit.clock import Clock
from servicekit.timeouts import LoopLag


@dataclass(frozen=True)
class Routes:
    """What stands behind one pipeline."""

    llm: RoutedSpeechLM
    token2wav: RoutedToken2Wav
    lag: LoopLag = field(default_factory=LoopLag)
    """Measures the lag of the event loop while the routes are open."""

    def start(self) -> None:
        """Begin to look for replicas and to probe them, inside the running event loop."""
        self.lag.start()
        self.llm.start()
        self.token2wav.start()

    async def close(self) -> None:
        """Drop all connections."""
        self.lag.stop()
        await self.llm.close()
        await self.token2wav.close()

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica of both services."""
        return self.llm.snapshot() + self.token2wav.snapshot()


class Gate:
    """Implements `core.Admission` over both services' replicas."""

    def __init__(
        self,
        llm: RoutedSpeechLM,
        token2wav: RoutedToken2Wav,
        clock: Clock,
        caller: Callable[[], str] = lambda: "",
        source: PlaceSource | None = None,
    ) -> None:
        """Admit a stream when both services can serve it in time.

        Args:
            llm: the LLM's replicas.
            token2wav: those of token2wav; a stream needs a slot at one of them.
            clock: of the waiting.
            caller: names who asks now; places are shared fairly among them.
            source: gives the places; None: this process has all that both services can serve.
        """
        self._llm = llm
        self._token2wav = token2wav
        self._caller = caller
        slots = token2wav.fleet.replicas.all_slots
        self.capacity = Capacity(llm.fleet.settings, clock, llm.speed, token2wav.speed, slots)
        """State of this process alone; unused if another `source` is given."""
        self._source = source or self.capacity
        self._speaking = 0
        self._waited_for = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def speaking(self) -> int:
        """Streams under way."""
        return self._speaking

    @property
    def is_draining(self) -> bool:
        """Whether no stream may begin any more."""
        return self._is_draining

    def session_hold(self) -> GateHold:
        """See `core.Admission.session_hold`."""
        return GateHold(self._count)

    @asynccontextmanager
    async def admitted(
        self, priority: int, patience_s: float | None = None, is_under_way: bool = False, fingerprint: int = 0
    ) -> AsyncIterator[None]:
        """See `core.Admission.admitted`."""
        if self._is_draining and not is_under_way:
            raise NotReadyError("this gateway is being stopped; ask another one")
        self._count(1)
        try:
            async with self._placed(Asker(self._caller(), priority, fingerprint, patience_s)):
                self._token2wav.fleet.check(priority, patience_s)
                await self._token2wav.until_usable()
                await self._llm.until_usable()
                yield
        finally:
            self._count(-1)

    @asynccontextmanager
    async def _placed(self, asker: Asker) -> AsyncIterator[None]:
        """Hold a place for one stream, waiting for it if it comes in time."""
        place = await self._source.take(asker)
        is_whole = False
        self._speaking += 1
        try:
            yield
            is_whole = True
        finally:
            self._speaking -= 1
            self._source.give_back(place, is_whole)

    def drain(self) -> None:
        """Admit no more streams; those under way go on."""
        self._is_draining = True

    async def until_idle(self) -> None:
        """Return when no stream is under way and no session is waited for."""
        await self._idle.wait()

    def _count(self, change: int) -> None:
        self._waited_for += change
        if self._waited_for:
            self._idle.clear()
        else:
            self._idle.set()


class GateHold:
    """Implements `core.SessionHold`."""

    def __init__(self, count: Callable[[int], None]) -> None:
        """Made by `Gate.session_hold`; `count` adds to what the gate waits for."""
        self._count = count
        self._is_held = False

    @property
    def is_held(self) -> bool:
        """See `core.SessionHold.is_held`."""
        return self._is_held

    def acquire(self) -> None:
        """See `core.SessionHold.acquire`."""
        if not self._is_held:
            self._is_held = True
            self._count(1)

    def release(self) -> None:
        """See `core.SessionHold.release`."""
        if self._is_held:
            self._is_held = False
            self._count(-1)
