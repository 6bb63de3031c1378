"""How many new voices a caller may bring along with its requests.

A voice that token2wav knows costs nothing and counts for nothing. A new one takes its place among all streams: seconds
of computing, and up to 170 MB of memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from weakref import WeakValueDictionary

from gateway.errors import VoiceRateError
from gateway.ledger import CallerLedger


@dataclass(frozen=True)
class InlineVoiceLimits:
    """Of one caller, in any minute."""

    voices_per_minute: int = 30
    bytes_per_minute: int = 32 * 1024 * 1024
    """Most bytes of recordings as they come; samples count 4 bytes each."""


class InlineVoiceBudget:
    """Bounds the new voices that callers bring, over all processes of a gateway."""

    def __init__(self, limits: InlineVoiceLimits, ledger: CallerLedger) -> None:
        """Begin with nothing brought."""
        self._limits = limits
        self._ledger = ledger
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def take(self, caller: str, voice: str, recording_bytes: int) -> None:
        """Count a new voice, before anything is computed for it; `voice` names it by its content.

        Raises:
            VoiceRateError: too many voices, or too much of them, within the last minute.
        """
        most, most_bytes = self._limits.voices_per_minute, self._limits.bytes_per_minute
        wait_s = self._ledger.may_in("bring", caller, most, most_bytes, voice, recording_bytes)
        if wait_s > 0:
            got = f"more than {most} new voices or {most_bytes} bytes of them a minute from one caller"
            raise VoiceRateError(f"{got}; try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def turn(self, caller: str) -> asyncio.Lock:
        """Return the caller's lock for making a voice: one at a time, so that other callers come in between."""
        lock = self._turns.get(caller)
        if lock is None:
            lock = self._turns[caller] = asyncio.Lock()
        return lock
