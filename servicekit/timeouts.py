"""How long to wait: for no longer than a limit, or longer for a service that is slow or only seems so.

`asyncio.wait_for` loses, before Python 3.12, a cancellation that comes together with the result. `timeout` loses none
from Python 3.11 on; before that one that comes together with its own end, which is why `servicekit.tasks` cancels
again. A service seems slow when this process's own event loop stood still; `patient_timeout` tells:

limit ─► passed ─► own loop stood still?          ─► as much longer
                └► the service served others?     ─► as long again, a few times
                └► neither                        ─► the wait is over
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

if sys.version_info >= (3, 11):
    from asyncio import Timeout, timeout
else:
    from async_timeout import Timeout, timeout

__all__ = ["LoopLag", "Patience", "PatientTimer", "Timeout", "expire", "patient_timeout", "timeout"]

TICK_S = 0.25
"""Seconds between two looks at the loop; limits are of 2 s and more."""
MAX_EXTENSIONS = 4.0
"""Most times its limit that a wait is extended because the service serves others."""


def expire(limit: Timeout) -> None:
    """Have a limit that somebody else waits under pass now; before Python 3.11 that can't be done, and it goes on."""
    if sys.version_info >= (3, 11):
        limit.reschedule(asyncio.get_running_loop().time())


class LoopLag:
    """How long a running event loop has stood still, all in all; it counts between `start` and `stop`."""

    def __init__(self) -> None:
        self.total_s = 0.0
        """Seconds in all; the value never falls."""
        self._timer: asyncio.TimerHandle | None = None
        self._stood_still_s = float("-inf")

    def start(self) -> None:
        """Begin to count in the running event loop; harmless if it counts."""
        if self._timer is None:
            self._tick_in(asyncio.get_running_loop())

    def stop(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, late_s: float, now_s: float) -> None:
        """Note that a tick came late; less than a tick is the usual work of a loop."""
        if late_s >= TICK_S:
            self.total_s += late_s
            self._stood_still_s = now_s

    def is_recent(self, window_s: float) -> bool:
        """Tell whether the running loop stood still within the last `window_s` seconds."""
        try:
            now_s = asyncio.get_running_loop().time()
        except RuntimeError:
            return False
        return now_s - self._stood_still_s <= window_s

    def _tick_in(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + TICK_S

        def tick() -> None:
            self.note(loop.time() - due_s, loop.time())
            self._tick_in(loop)

        self._timer = loop.call_at(due_s, tick)


class Patience:
    """One service's progress and the own loop's lag; says of each wait how much longer it may take."""

    def __init__(self, lag: LoopLag | None = None) -> None:
        """Begin without any progress.

        Args:
            lag: of the loop that waits; None: it is taken to turn always.
        """
        self._lag = lag or LoopLag()
        self._progress_s = float("-inf")

    def progressed(self) -> None:
        """Note that the service did a piece of its work, for whomever."""
        self._progress_s = asyncio.get_running_loop().time()

    def has_served(self, window_s: float) -> bool:
        """Tell whether the service did a piece of its work in the last `window_s` seconds."""
        return asyncio.get_running_loop().time() - self._progress_s < window_s

    def begin(self, limit_s: float) -> Callable[[], float]:
        """Begin a wait of so many seconds.

        Returns:
            What to ask each time the limit has passed: for how many seconds more to wait; 0 when the wait is over.
        """
        began_s, lag_s = asyncio.get_running_loop().time(), self._lag.total_s
        ends_s = began_s + limit_s * (1 + MAX_EXTENSIONS)

        def more_s() -> float:
            nonlocal lag_s, ends_s
            stood_s, lag_s = self._lag.total_s - lag_s, self._lag.total_s
            ends_s += stood_s
            now_s = asyncio.get_running_loop().time()
            served_s = self._progress_s + limit_s - now_s if self._progress_s > began_s else 0.0
            return max(0.0, min(max(stood_s, served_s), ends_s - now_s))

        return more_s


class PatientTimer:
    """Calls something once a wait has passed its limit and nothing gives more time; one wait may follow another.

    The event loop's timer outlives a wait that has ended, so that the next one, which ends later, needs none.
    """

    _wait: tuple[float, Callable[[], float], Callable[[], None]] | None = None
    _handle: asyncio.TimerHandle | None = None

    def begin(self, limit_s: float, more_s: Callable[[], float], on_end: Callable[[], None]) -> None:
        """Begin a wait; the one before has ended.

        Args:
            limit_s: seconds until `more_s` is asked first.
            more_s: returns the seconds to wait on; 0 for none.
            on_end: is called when there are none.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + limit_s
        if self._handle is not None and self._handle.when() > ends_s:
            self.cancel()
        self._wait = ends_s, more_s, on_end
        self._handle = self._handle or loop.call_at(ends_s, self._pass)

    def end(self) -> None:
        """End the wait: what was waited for has come."""
        self._wait = None

    def cancel(self) -> None:
        """Call nothing any more."""
        self._wait = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _pass(self) -> None:
        self._handle = None
        if self._wait is None:
            return
        ends_s, more_s, on_end = self._wait
        left_s = ends_s - asyncio.get_running_loop().time()  # of a wait that began later
        if (extra_s := left_s if left_s > 0 else more_s()) > 0:
            self.begin(extra_s, more_s, on_end)
        else:
            on_end()


@asynccontextmanager
async def patient_timeout(limit_s: float, more_s: Callable[[], float]) -> AsyncIterator[None]:
    """Wait for what is inside no longer than `limit_s`, and longer for as long as `more_s` says so.

    Before Python 3.11 a limit can't be moved from outside, and is kept.

    Raises:
        asyncio.TimeoutError: the limit has passed and `more_s` gave no more.
    """
    async with timeout(limit_s if sys.version_info < (3, 11) else None) as limit:
        timer = PatientTimer()
        timer.begin(limit_s, more_s, partial(expire, limit))
        try:
            yield
        finally:
            timer.cancel()
