"""A process that does one thing at a time: what comes while it is busy waits, in order."""

from __future__ import annotations

import asyncio


class SerialProcess:
    """One core's worth of work in virtual time."""

    def __init__(self) -> None:
        """Begin idle."""
        self._free_s = 0.0

    def reserve(self, from_s: float, seconds: float) -> float:
        """Queue so much work that can begin at `from_s`; returns when it is done."""
        self._free_s = max(from_s, self._free_s) + seconds
        return self._free_s

    async def use(self, seconds: float) -> None:
        """Queue so much work and wait until it is done."""
        now_s = asyncio.get_running_loop().time()
        if (wait_s := self.reserve(now_s, seconds) - now_s) > 0:
            await asyncio.sleep(wait_s)
