"""The one way to wait for no longer than a limit, which loses no cancellation.

`asyncio.wait_for` does lose one, before Python 3.12, that comes together with the result: what was to be stopped goes
on, and a task that waits for its end waits for ever. `running_meanwhile` has work run beside something.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress

if sys.version_info >= (3, 11):
    from asyncio import Timeout, timeout
else:
    from async_timeout import Timeout, timeout

__all__ = ["Timeout", "expire", "running_meanwhile", "timeout"]


def expire(limit: Timeout) -> None:
    """Have a limit that somebody else waits under pass now; before Python 3.11 that can't be done, and it goes on."""
    if sys.version_info >= (3, 11):
        limit.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def running_meanwhile(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have some work run in a task of its own until the context is left, which cancels it and waits for its end.

    Raises:
        Exception: when the context is left, what the work failed with.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
