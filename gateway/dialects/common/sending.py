"""How long the doors that stream their answers wait for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from gateway.errors import StalledReaderError
from servicekit.timeouts import timeout


async def sent(sending: Awaitable[None], timeout_s: float) -> None:
    """Wait until the reader has made room for what is sent.

    Args:
        sending: cancelled when the time has passed.
        timeout_s: a reader who makes no room for so long is taken for gone.

    Raises:
        StalledReaderError: the time has passed.
    """
    try:
        async with timeout(timeout_s):
            await sending
    except asyncio.TimeoutError as error:
        got = f"the reader of the answer stood still for {timeout_s:g} s"
        raise StalledReaderError(f"{got}; read it as it comes, or hang up") from error
