"""The one way to wait for no longer than a limit, which loses no cancellation.

`asyncio.wait_for` does lose one, before Python 3.12, that comes together with the result: what was to be stopped goes
on, and a task that waits for its end waits for ever.
"""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 11):
    from asyncio import Timeout, timeout
else:
    from async_timeout import Timeout, timeout

__all__ = ["Timeout", "expire", "timeout"]


def expire(limit: Timeout) -> None:
    """Have a limit that somebody else waits under pass now; before Python 3.11 that can't be done, and it goes on."""
    if sys.version_info >= (3, 11):
        limit.reschedule(asyncio.get_running_loop().time())
