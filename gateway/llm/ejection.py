"""Ends the wait for a replica that is ejected meanwhile: one that stands still says nothing, its probes do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gateway.errors import LLMUnavailableError
from gateway.routing.fleet import SlotLease
from servicekit.timeouts import Timeout, expire, timeout

T = TypeVar("T")


class Ejection:
    """Whether the LLM replica of one answer has been ejected. An answer that gives tokens keeps it from that."""

    def __init__(self, slot: SlotLease) -> None:
        """Watch the slot; there is one watcher."""
        self._slot = slot
        self._has_happened = False
        self._limit: Timeout | None = None
        slot.on_ejected = self._note

    async def unless(self, coming: Awaitable[T]) -> T:
        """Wait for something of the replica's.

        Raises:
            LLMUnavailableError: the replica was ejected before that came.
        """
        try:
            async with timeout(0.0 if self._has_happened else None) as self._limit:
                return await coming
        except asyncio.TimeoutError as error:
            if not self._has_happened:
                raise
            got = f"the LLM at {self._slot.address} was ejected ({self._slot.replica.health.last_failure})"
            raise LLMUnavailableError(f"{got}; see its log") from error
        finally:
            self._limit = None

    def _note(self) -> None:
        self._has_happened = True
        if self._limit is not None:
            expire(self._limit)
