"""Whether the event loop still turns: a task of it notes the time, and another thread compares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from servicekit.clock import Clock

BEAT_INTERVAL_S = 1.0
MAX_SILENCE_S = 15.0
"""Longer than any pause of a loop that is merely busy."""


class Heartbeat:
    """When the event loop last turned. Read from any thread."""

    def __init__(self, clock: Clock) -> None:
        """Count from now."""
        self._clock = clock
        self._last_s = clock.now()

    def beat(self) -> None:
        """Note that the loop turns."""
        self._last_s = self._clock.now()

    @property
    def silence_s(self) -> float:
        """Seconds since the last beat."""
        return self._clock.now() - self._last_s

    @property
    def is_alive(self) -> bool:
        """Whether the last beat is recent."""
        return self.silence_s <= MAX_SILENCE_S


@asynccontextmanager
async def beating(clock: Clock) -> AsyncIterator[Heartbeat]:
    """Have the running event loop beat until the context is left."""
    heartbeat = Heartbeat(clock)
    task = asyncio.create_task(_beat(heartbeat), name="heartbeat")
    try:
        yield heartbeat
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _beat(heartbeat: Heartbeat) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_INTERVAL_S)
