"""How many new voices one caller may bring along with its requests, and how large they may be together.

A voice that token2wav knows already costs nothing and counts for nothing. A new one takes its place among all streams:
seconds of computing, and up to 170 MB of memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from gateway.errors import VoiceRateError
from gateway.voices.store import WINDOW_S
from servicekit.clock import Clock

_MAX_CALLERS = 4096
"""Most callers remembered; the one seen longest ago is forgotten first."""


@dataclass(frozen=True)
class _Brought:
    at_s: float
    voice: str
    """Content hash of the voice."""
    recording_bytes: int
    processes: set[int]
    """Processes that the voice came to."""


@dataclass(frozen=True)
class InlineVoiceLimits:
    """Of one caller, in any minute."""

    voices_per_minute: int = 30
    bytes_per_minute: int = 32 * 1024 * 1024
    """Most bytes of recordings as they come; samples count 4 bytes each."""


class VoiceBudget(Protocol):
    """Bounds the new voices that callers bring, over all processes of a gateway."""

    async def take(self, caller: str, voice: str, recording_bytes: int) -> None:
        """Count a new voice, before anything is computed for it; `voice` names it by its content.

        Raises:
            VoiceRateError: too many voices, or too much of them, within the last minute.
        """
        ...

    def turn(self, caller: str) -> AbstractAsyncContextManager[None]:
        """Return the caller's lock for making a voice: one at a time, so that other callers come in between."""
        ...


class InlineVoiceBudget:
    """Implements `VoiceBudget`: remembers each caller's voices of the last minute; lives in one event loop."""

    def __init__(self, limits: InlineVoiceLimits, clock: Clock) -> None:
        """Begin with nothing brought."""
        self._limits = limits
        self._clock = clock
        self._brought: OrderedDict[str, deque[_Brought]] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, caller: str, voice: str, recording_bytes: int, process: int = 0) -> None:
        """See `VoiceBudget.take`; what the caller brought to another process just now is not counted again here."""
        now_s = self._clock.now()
        brought = self._brought.setdefault(caller, deque())
        self._brought.move_to_end(caller)
        while len(self._brought) > _MAX_CALLERS:
            self._brought.popitem(last=False)
        while brought and brought[0].at_s <= now_s - WINDOW_S:
            brought.popleft()
        for each in brought:
            if each.voice == voice and process not in each.processes:
                each.processes.add(process)
                return
        if brought and (wait_s := self._wait_s(brought, recording_bytes, now_s)) > 0:
            limits = self._limits
            got = f"more than {limits.voices_per_minute} new voices or {limits.bytes_per_minute} bytes of them a minute"
            raise VoiceRateError(f"{got} from one caller; try again in {wait_s:.0f} s", retry_after_s=wait_s)
        brought.append(_Brought(now_s, voice, recording_bytes, {process}))

    def turn(self, caller: str) -> asyncio.Lock:
        """See `VoiceBudget.turn`."""
        lock = self._turns.get(caller)
        if lock is None:
            lock = self._turns[caller] = asyncio.Lock()
        return lock

    def _wait_s(self, brought: deque[_Brought], recording_bytes: int, now_s: float) -> float:
        """Return how long until there is room; a recording that is larger than all room may come alone."""
        count, total = len(brought), sum(each.recording_bytes for each in brought)
        wait_s = 0.0
        for each in brought:
            if count < self._limits.voices_per_minute and total + recording_bytes <= self._limits.bytes_per_minute:
                break
            count, total, wait_s = count - 1, total - each.recording_bytes, each.at_s + WINDOW_S - now_s
        return wait_s
