"""Runs an asynchronous generator in a task of its own, a bounded amount of items ahead of its reader.

This is how the two services overlap. The reader says how much it needs, and sleeps until so much is there. Knows
nothing of speech.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Generic, TypeVar

from servicekit.tasks import stop

T = TypeVar("T")
_TURNS_TO_SEND = 2
"""Turns of the event loop until a client has made a request and its connection has sent it."""


class Ahead(Generic[T]):
    """The reading end: items in order, then the end or the source's own error."""

    def __init__(self, source: AsyncGenerator[T], most: int, weigh: Callable[[T], int] = lambda item: 1) -> None:
        """Keep unread items until they weigh `most`; by default each weighs 1."""
        self._source = source
        self._most, self._weigh = most, weigh
        self._items: list[T] = []
        self._weight = 0
        self._least = 1
        self._has_ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    async def take(self, least: int = 1) -> list[T]:
        """Wait until the unread items weigh so much, or as much as may be kept, and return them; empty at the end.

        Raises:
            Exception: the source's own, once all before it is read.
        """
        self._least = min(least, self._most)
        while self._weight < self._least and not self._has_ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._error is not None and not self._items:
            raise self._error
        items, self._items, self._weight = self._items, [], 0
        _wake(self._writer)
        return items

    async def run(self) -> None:
        """Read the source to its end; it is closed on every way out."""
        try:
            async with aclosing(self._source) as items:
                async for item in items:
                    while self._weight >= self._most:
                        self._writer = asyncio.get_running_loop().create_future()
                        await self._writer
                    self._items.append(item)
                    self._weight += self._weigh(item)
                    if self._weight >= self._least:
                        _wake(self._reader)
        except Exception as error:
            self._error = error
        # NOTE: one that is cancelled does not end: its reader must not take what came for all.
        self._has_ended = True
        _wake(self._reader)


def _wake(waiter: asyncio.Future[Any] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


@asynccontextmanager
async def running_ahead(
    source: AsyncGenerator[T], most: int, weigh: Callable[[T], int] = lambda item: 1
) -> AsyncIterator[Ahead[T]]:
    """Read `source`, whose request goes out before the context's own; leaving it waits until the source has closed.

    For the arguments see `Ahead`.
    """
    ahead = Ahead(source, most, weigh)
    task = asyncio.create_task(ahead.run())
    try:
        for _ in range(_TURNS_TO_SEND):
            await asyncio.sleep(0)
        yield ahead
    finally:
        await stop(task)
