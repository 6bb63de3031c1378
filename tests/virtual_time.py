"""A clock that a test moves, and an event loop whose time is made up: it jumps to the next timer when all else is done.

    ready callbacks run at 12.0 s ─► none left ─► the next timer is due at 12.5 s ─► it is 12.5 s

Nothing sleeps and nothing waits for the machine, so that a run takes as long as its Python and comes out the same
every time. Threads, sockets and child processes don't exist in this time: a loop that has only those to wait for
stands still, which is an error.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
_OBJECTS_A_COLLECTION = 100_000
"""New objects between two collections: the usual 700 would take most of a run's time, as thousands of tasks live
long."""


class StandstillError(RuntimeError):
    """Everything waits, and no timer will ever wake it."""


class ManualClock:
    """Stands still at 0 s until a test, or its loop, moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class VirtualLoop(asyncio.SelectorEventLoop):
    """The standard loop, with a clock of its own."""

    def __init__(self) -> None:
        """Begin at 0 s."""
        self.clock = ManualClock()
        super().__init__(_JumpingSelector(self._let_pass))
        self._order = count()
        self._scheduled: list[_OrderedTimer] = []

    def time(self) -> float:
        """Return the simulation's seconds."""
        return self.clock.now()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a call; of calls for the same moment the one that was scheduled first runs first."""
        # NOTE: the standard loop leaves their order to its heap, which real time never shows and virtual time does.
        timer = _OrderedTimer(when, callback, args, self, context)
        timer.order = next(self._order)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def _let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        # NOTE: the standard loop runs what is due within the clock's resolution, which must be more than nothing.
        self._clock_resolution = 2 * math.ulp(self.clock.now())

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run it at once: a thread's time would be the machine's."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _OrderedTimer(asyncio.TimerHandle):
    """A timer that stands behind those of the same moment which were there before."""

    order: int
    _scheduled: bool
    _when: float

    def __lt__(self, other: _OrderedTimer) -> bool:  # type: ignore[override]
        mine, others = self._when, other._when
        return mine < others or (mine == others and self.order < other.order)


class _JumpingSelector(selectors.SelectSelector):
    """Lets the time pass for which it was to wait."""

    def __init__(self, let_pass: Callable[[float], None]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StandstillError("nothing is left that time could wake; something waits for what never comes")
        if timeout > 0:
            self._let_pass(timeout)
        return []


def run_virtually(work: Callable[[ManualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a new loop's virtual time, from 0 s to its end.

    Args:
        work: makes the coroutine; gets the loop's clock.

    Raises:
        StandstillError: it waits for something that no timer brings.
    """
    loop, thresholds = VirtualLoop(), gc.get_threshold()
    gc.set_threshold(_OBJECTS_A_COLLECTION, *thresholds[1:])
    try:
        try:
            return loop.run_until_complete(work(loop.clock))
        finally:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
        gc.set_threshold(*thresholds)


def _cancel_all(loop: VirtualLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
