"""Shares the event loop among texts: one of them is cut or prepared in each pass of the loop, and not for long.

However many texts there are and whatever they hold, audio is sent and requests are read between two turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

T = TypeVar("T")
Steps = Iterator[T | None]
"""Work in small steps: yields None after each, and its result at last."""

TURN_S = 0.002
"""A turn ends with the first step that ends later than this; nearly every piece of text needs one turn."""


class TextTurns:
    """Gives turns in the order of asking; one serves a process."""

    def __init__(self, turn_s: float = TURN_S, now_s: Callable[[], float] = time.perf_counter) -> None:
        """Begin without waiting callers."""
        self._turn_s = turn_s
        self._now_s = now_s
        self._lock = asyncio.Lock()
        self._is_taken = False
        """Whether a text has had its turn in this pass of the event loop."""

    async def next_of(self, steps: Iterator[T | None]) -> T | None:
        """Take steps, in as many turns as it needs, up to the first that yields something; None at their end."""
        while True:
            async with self._lock:
                if self._is_taken:
                    await asyncio.sleep(0)
                self._is_taken = True
                asyncio.get_running_loop().call_soon(partial(setattr, self, "_is_taken", False))
                ends_s = self._now_s() + self._turn_s
                for found in steps:
                    if found is not None:
                        return found
                    if self._now_s() >= ends_s:
                        break
                else:
                    return None
            await asyncio.sleep(0)


def finished(steps: Steps[T]) -> T:
    """Take all steps at once and return their result."""
    return next(found for found in steps if found is not None)
