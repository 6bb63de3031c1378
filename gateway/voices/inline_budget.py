"""How many new voices a caller may bring along with its requests.

A voice that token2wav knows costs nothing and counts for nothing. A new one takes its place among all streams: seconds
of computing, and up to 170 MB of memory.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from gateway.errors import VoiceRateError
from gateway.ledger import CallerLedger


class InlineVoiceBudget:
    """Bounds the new voices that callers bring, over all processes of a gateway."""

    def __init__(
        self, ledger: CallerLedger, voices_per_minute: int = 30, bytes_per_minute: int = 32 * 1024 * 1024
    ) -> None:
        """Begin with nothing brought.

        Args:
            ledger: counts what each caller has brought.
            voices_per_minute: of one caller, in any minute.
            bytes_per_minute: of recordings as they come; samples count 4 bytes each.
        """
        self._ledger = ledger
        self._limits = (voices_per_minute, bytes_per_minute)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def take(self, caller: str, voice: str, recording_bytes: int) -> None:
        """Count a new voice, before anything is computed for it; `voice` names it by its content.

        Raises:
            VoiceRateError: too many voices, or too much of them, within the last minute.
        """
        most, most_bytes = self._limits
        wait_s = self._ledger.may_in("bring", caller, most, most_bytes, voice, recording_bytes)
        if wait_s > 0:
            got = f"more than {most} new voices or {most_bytes} bytes of them a minute from one caller"
            raise VoiceRateError(f"{got}; try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def turn(self, caller: str) -> asyncio.Lock:
        """Return the caller's lock for making a voice: one at a time, so that other callers come in between."""
        return self._turns.setdefault(caller, asyncio.Lock())
