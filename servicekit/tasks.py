"""Tasks and their ends: whoever begins a task stops it, and a stop always comes to its end.

A cancellation is a wish, and code below us loses some. gRPC answers one with the failure of a call that had already
failed, and Python 3.10's `timeout` takes one that comes with its own end for its own. The task then goes on, and
whoever waits for its end waits for ever. So `stop` cancels again until the task is done, and says what it waits for.

    running_meanwhile    a task beside a block of code
    running_ahead        an asynchronous generator, some items ahead of its reader
    until_first          several at once, until one of them has ended
    stop                 any other task, by its owner; `cancel` where nothing can be awaited
    run_whole            a thread's work that its caller's cancellation must not outrun
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds until a task that lives on is cancelled again; it may be at its own last work, which takes less."""
LIMIT_S = 10.0
"""Seconds after which a task that can't be stopped is left alone."""


def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and those that live on again, until they have ended or `LIMIT_S` has passed; log which have not.

    What they fail with is dropped. Wait for none: `stop` does.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + LIMIT_S

    def again(task: asyncio.Future[Any]) -> None:
        if task.done():
            _see(task)
            return
        if loop.time() >= ends_s:
            logger.error("%r lives on %.0f s after its cancellation; it waits at %s", task, LIMIT_S, _place(task))
            return
        task.cancel()
        loop.call_later(AGAIN_S, again, task)

    for task in tasks:
        again(task)
        if not task.done():
            task.add_done_callback(_see)


async def stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and return when all have ended, or `LIMIT_S` has passed; see `cancel`.

    A cancellation of the caller meanwhile is raised after that: what the tasks hold is free first.
    """
    cancel(*tasks)
    await _wait_through(tasks, LIMIT_S + AGAIN_S)


async def run_whole(work: Callable[..., T], *arguments: Any) -> T:
    """Call what blocks in a thread and return when it has ended, also if the caller is cancelled before.

    For what is done under a lock: a thread goes on when the task that waits for it is cancelled.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    running.add_done_callback(_see)
    await _wait_through([running])
    return running.result()


@asynccontextmanager
async def running_meanwhile(work: Coroutine[Any, Any, None], name: str | None = None) -> AsyncIterator[None]:
    """Have some work run in a task of its own until the context is left, which stops it.

    Raises:
        Exception: when the context is left, what the work failed with.
    """
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        await stop(task)
    if task.done() and not task.cancelled():
        task.result()


async def until_first(*works: Coroutine[Any, Any, None]) -> None:
    """Run several works at once until one of them has ended, and stop the others.

    Raises:
        Exception: what the one failed with; of several that have failed, the first in order.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await stop(*tasks)
    for task in tasks:
        if task in done:
            task.result()


def raise_if_cancelled() -> None:
    """Raise CancelledError if somebody has cancelled the running task; for where an error may have hidden it.

    Before Python 3.11 a task does not know, and only `stop`'s next cancellation reaches it.
    """
    task = asyncio.current_task()
    if sys.version_info >= (3, 11) and task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _wait_through(tasks: Sequence[asyncio.Future[Any]], limit_s: float = math.inf) -> None:
    """Wait until all have ended, or so long; a cancellation is raised only then."""
    loop, was_cancelled = asyncio.get_running_loop(), False
    ends_s = loop.time() + limit_s
    while (left := [task for task in tasks if not task.done()]) and loop.time() < ends_s:
        try:
            await asyncio.wait(left, timeout=None if math.isinf(ends_s) else ends_s - loop.time())
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError


def _see(task: asyncio.Future[Any]) -> None:
    """Take note of what a task failed with; asyncio logs it otherwise."""
    if not task.cancelled():
        task.exception()


def _place(task: asyncio.Future[Any]) -> str:
    frames = task.get_stack(limit=1) if isinstance(task, asyncio.Task) else []
    return ", ".join(f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames) or "a place unknown"


def failed(future: asyncio.Future[T], error: BaseException) -> asyncio.Future[T]:
    """Return a future that fails with an error, unless it is done; nobody need ever await it."""
    if not future.done():
        future.set_exception(error)
        future.exception()
    return future


class Line:
    """Lets those who have much to do on the event loop go on one in each of its turns, so that others go on between."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def turn(self) -> None:
        """Return in a turn in which nobody else of this line does, first come, first served."""
        async with self._lock:
            await asyncio.sleep(0)


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
