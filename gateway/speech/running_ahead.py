"""Runs an asynchronous generator in a task of its own, a bounded number of items ahead of its reader.

This is how the two services overlap. Knows nothing of speech.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from servicekit.tasks import stop

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    error: Exception | None


class Ahead(Generic[T]):
    """The reading end: items in order, then the end or the source's own error."""

    def __init__(self, source: AsyncGenerator[T], depth: int) -> None:
        """Keep at most `depth` items that have not been read yet."""
        self._source = source
        self._items: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=depth)
        self._end: _End | None = None

    def __aiter__(self) -> Ahead[T]:
        return self

    async def __anext__(self) -> T:
        item = self._end or await self._items.get()
        if not isinstance(item, _End):
            return item
        self._end = item
        raise item.error or StopAsyncIteration

    def take_ready(self) -> list[T]:
        """Return what has arrived already, without waiting; may be empty."""
        ready: list[T] = []
        while self._end is None and not self._items.empty():
            item = self._items.get_nowait()
            if isinstance(item, _End):
                self._end = item
            else:
                ready.append(item)
        return ready

    async def run(self) -> None:
        """Read the source to its end; it is closed on every way out."""
        error: Exception | None = None
        try:
            async with aclosing(self._source) as items:
                async for item in items:
                    await self._items.put(item)
        except Exception as caught:
            error = caught
        await self._items.put(_End(error))


@asynccontextmanager
async def running_ahead(source: AsyncGenerator[T], depth: int) -> AsyncIterator[Ahead[T]]:
    """Start to read `source`; leaving the context stops it and waits until it has closed."""
    ahead = Ahead(source, depth)
    task = asyncio.create_task(ahead.run())
    try:
        yield ahead
    finally:
        await stop(task)
