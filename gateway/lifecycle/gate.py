"""Decides whether a stream may begin, before any service does work for it, and counts those that have begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.access.caller import Caller, current_caller
from gateway.core import SessionHold
from gateway.errors import GatewayError, NotReadyError
from gateway.llm.routed import RoutedSpeechLM
from gateway.routing.admission_queue import AdmissionQueue, QueueEntry
from gateway.routing.replica import LOOK_AGAIN_S
from gateway.token2wav.routed import RoutedToken2Wav
from servicekit.clock import Clock
from servicekit.tasks import stop
from servicekit.timeouts import LoopLag, timeout

LOOK_S = 2 * LOOK_AGAIN_S
"""Seconds between two questions to the services while requests wait."""


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


class Gate:
    """Implements `core.Admission` over both services' replicas.

    The services say how many streams they serve; a request waits here, in one fair queue, until they have room.
    """

    def __init__(
        self,
        llm: RoutedSpeechLM,
        token2wav: RoutedToken2Wav,
        clock: Clock,
        caller: Callable[[], Caller] = current_caller,
    ) -> None:
        """Admit a stream when both services have room for it.

        Args:
            token2wav: those of token2wav; a stream needs a slot at one of them.
            caller: tells who asks now; streams are shared fairly among callers.
        """
        self._llm = llm
        self._token2wav = token2wav
        self._clock = clock
        self._caller = caller
        self._queue = AdmissionQueue()
        self._looking: asyncio.Task[None] | None = None
        self.speaking = 0
        """Streams under way."""
        self._waited_for = 0
        self.is_draining = False
        """Whether no stream may begin any more."""
        self._idle = asyncio.Event()
        self._idle.set()
        for router in (llm, token2wav):
            router.fleet.on_room = self._serve
            # NOTE: the stream that begins is counted itself.
            router.caller_has_share = lambda: self._queue.has_share(caller().name, but=1)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    def session_hold(self) -> SessionHold:
        """Make a session's hold; it is not acquired yet."""
        return SessionHold(self._count)

    @asynccontextmanager
    async def admitted(
        self, priority: int, patience_s: float | None = None, is_under_way: bool = False
    ) -> AsyncIterator[None]:
        """Let one stream in and count it until the context is left.

        Args:
            priority: 1 (first) to 10.
            patience_s: the caller waits so long at most; None: it did not say.
            is_under_way: it belongs to a session whose `SessionHold` is held, so it may begin when others may not.

        Raises:
            OverloadedError: the services had no room for it in time.
            NotReadyError: the gateway admits no more streams.
            LLMUnavailableError, Token2WavUnavailableError: no replica of that service can be had.
        """
        if self.is_draining and not is_under_way:
            raise NotReadyError("this gateway is being stopped; ask another one")
        wait_s = self._token2wav.fleet.settings.admission_wait_s
        self._count(1)
        try:
            await self._token2wav.wait_for_replica()
            await self._llm.wait_for_replica()
            caller = self._caller().name
            await self._take_turn(caller, priority, wait_s if patience_s is None else min(patience_s, wait_s))
            try:
                yield
            finally:
                self._end_stream(caller)
        finally:
            self._count(-1)

    async def _take_turn(self, caller: str, priority: int, wait_s: float) -> None:
        """Wait for the turn of a request; its stream is counted then.

        Raises:
            OverloadedError: it does not come in time.
            LLMUnavailableError, Token2WavUnavailableError: meanwhile the last replica of that service was lost.
        """
        if not self._queue.waiting and self._has_room(caller):
            self._queue.begin_stream(caller)
            self.speaking += 1
            return
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry = QueueEntry(caller, priority, turn)
        self._queue.join(entry)
        self._serve()
        try:
            async with timeout(wait_s):
                has_turn = await turn
        except BaseException as error:
            self._queue.leave(entry)
            # NOTE: the turn may have come at the moment when the wait ended.
            if turn.done() and not turn.cancelled() and turn.result():
                self._end_stream(caller)
            if isinstance(error, asyncio.TimeoutError):
                raise self._refusal() from error
            raise
        if not has_turn:
            raise self._refusal()

    def _refusal(self) -> GatewayError:
        """Make the error of a request whose turn does not come in time."""
        fleets = [self._llm.fleet, self._token2wav.fleet]
        lost = next((fleet for fleet in fleets if fleet.choose() is None), None)
        if lost is not None:
            return lost.unavailable()
        return min(fleets, key=lambda fleet: fleet.free_slots()).overloaded(len(self._queue))

    def _serve(self) -> None:
        """Give requests their turns, as long as there is room; look for room while some wait."""
        while (entry := self._queue.first()) is not None and self._has_room(entry.caller):
            self._queue.leave(entry)
            self._queue.begin_stream(entry.caller)
            self.speaking += 1
            entry.turn.set_result(True)
        if len(self._queue) and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), name="look-for-room")

    def _has_room(self, caller: str) -> bool:
        llm, token2wav = self._llm.fleet, self._token2wav.fleet
        starting = max(0, self.speaking - token2wav.open_streams)
        # NOTE: services keep some room for callers with few streams, and say themselves whether there is any.
        if not starting and not self._queue.has_share(caller):
            return True
        if llm.looking or token2wav.looking:
            return False
        return starting < min(llm.free_slots(), token2wav.free_slots())

    async def close(self) -> None:
        """Look for room no longer."""
        if self._looking is not None:
            await stop(self._looking)

    async def _look(self) -> None:
        """Ask the services again and again how busy they are, while requests wait: other gateways' streams end too."""
        while len(self._queue):
            await asyncio.sleep(LOOK_S)
            await asyncio.gather(self._token2wav.look(), self._llm.look())

    def _end_stream(self, caller: str) -> None:
        self.speaking -= 1
        self._queue.end_stream(caller)
        self._serve()

    def drain(self) -> None:
        """Admit no more streams; those under way go on."""
        self.is_draining = True

    async def until_idle(self) -> None:
        """Return when no stream is under way and no session is waited for."""
        await self._idle.wait()

    def _count(self, change: int) -> None:
        self._waited_for += change
        if self._waited_for:
            self._idle.clear()
        else:
            self._idle.set()
