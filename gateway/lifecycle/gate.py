"""Decides whether a stream may begin, before any service does work for it, and counts those that have begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.errors import NotReadyError
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.places import Ends, Place, Places
from gateway.routing.replica import ReplicaStatus
from gateway.routing.waiting import Coming
from gateway.token2wav.routed import RoutedToken2Wav
from servicekit.clock import Clock
from servicekit.timeouts import LoopLag


@dataclass(frozen=True)
class Routes:
    """What stands behind one pipeline."""

    llm: RoutedSpeechLM
    token2wav: RoutedToken2Wav
    lag: LoopLag = field(default_factory=LoopLag)
    """Of the event loop; counts while the routes are open."""

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
        self, llm: RoutedSpeechLM, token2wav: RoutedToken2Wav, clock: Clock, caller: Callable[[], str] = lambda: ""
    ) -> None:
        """Admit a stream when both services can serve it in time.

        Args:
            llm: the LLM's replicas.
            token2wav: those of token2wav; a stream needs a slot at one of them.
            clock: of the waiting.
            caller: names who asks now; places are shared fairly among them.
        """
        self._llm = llm
        self._token2wav = token2wav
        self._caller = caller
        self.places = Places(llm.fleet.settings, clock, self._limit, self._ends, self._is_limit_certain)
        for service in (llm, token2wav):
            service.speed.on_measured = self.places.serve
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
        self, priority: int, patience_s: float | None = None, is_under_way: bool = False
    ) -> AsyncIterator[None]:
        """See `core.Admission.admitted`."""
        if self._is_draining and not is_under_way:
            raise NotReadyError("this gateway is being stopped; ask another one")
        self._count(1)
        try:
            async with self._placed(priority, patience_s):
                self._token2wav.fleet.check(priority, patience_s)
                await self._token2wav.until_usable()
                await self._llm.until_usable()
                yield
        finally:
            self._count(-1)

    def _limit(self) -> float:
        """Return how many streams at once both services can serve in time."""
        return min(self._token2wav.fleet.replicas.all_slots(), self._limit_of_speed())

    def _is_limit_certain(self) -> bool:
        meters = (self._token2wav.speed, self._llm.speed)
        if self._limit_of_speed() >= self._token2wav.fleet.replicas.all_slots():
            return True
        return min(meters, key=lambda meter: meter.limit).is_certain

    def _limit_of_speed(self) -> float:
        return min(self._token2wav.speed.limit, self._llm.speed.limit)

    def _ends(self) -> Ends:
        """Return how fast streams end when all places are taken: where speed sets their number, each gets the least."""
        speech_s, least_speed = self._token2wav.speed.stream_speech_s, self._llm.fleet.settings.least_speed
        speeds = [speed for each in (self._llm, self._token2wav) if (speed := each.speed.speed)]
        if speech_s is None or not speeds or not least_speed or self._limit_of_speed() > self._limit():
            return Ends()
        proven = max(1.0, min(self._llm.speed.proven, self._token2wav.speed.proven))
        apart_s = speech_s / (proven * least_speed)
        return Ends(max(speech_s / min(*speeds, least_speed), self._speaking * apart_s), apart_s)

    @asynccontextmanager
    async def _placed(self, priority: int, patience_s: float | None) -> AsyncIterator[None]:
        """Hold a place for one stream, waiting for it if it comes in time."""
        place = await self._wait_for_place(priority, patience_s)
        is_whole = False
        self._count_speaking(1)
        try:
            yield
            is_whole = True
        finally:
            self._count_speaking(-1)
            self.places.give_back(place, is_whole)

    async def _wait_for_place(self, priority: int, patience_s: float | None) -> Place:
        coming = Coming[Place](lambda place: self.places.give_back(place, is_whole=False))
        caller = self._caller()
        answer = self.places.ask(caller, priority, coming.give, patience_s)
        if isinstance(answer, Place):
            return answer
        try:
            return await coming.within(self.places.wait_s(patience_s), lambda: self.places.leave(answer))
        except asyncio.TimeoutError as error:
            raise self.places.overloaded(caller, priority) from error

    def _count_speaking(self, change: int) -> None:
        self._speaking += change
        for service in (self._llm, self._token2wav):
            service.speed.set_streams(self._speaking)

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
