"""How many new voices a caller may bring along with its requests.

A voice that token2wav knows costs nothing and counts for nothing. A new one takes its place among all streams: seconds
of computing, and up to 170 MB of memory.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from gateway.access.caller import current_caller
from gateway.errors import VoiceRateError
from gateway.ledger import CallerLedger


class InlineVoiceBudget:
    """Bounds the new voices that callers bring, over all processes of a gateway."""

    voices_per_minute = 30
    """Most new voices of one caller in any minute."""
    bytes_per_minute = 32 * 1024 * 1024
    """Most bytes of their recordings as they come; samples count 4 bytes each."""

    def __init__(self, ledger: CallerLedger) -> None:
        """Begin with nothing brought; the ledger counts what each caller has brought."""
        self._ledger = ledger
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def take(self, voice: str, recording_bytes: int) -> None:
        """Count a new voice of the current caller, before it is computed; `voice` names it by its content.

        Raises:
            VoiceRateError: too many voices, or too much of them, within the last minute.
        """
        most, most_bytes = self.voices_per_minute, self.bytes_per_minute
        wait_s = self._ledger.may_in("bring", current_caller().name, most, most_bytes, voice, recording_bytes)
        if wait_s > 0:
            got = f"more than {most} new voices or {most_bytes} bytes of them a minute from one caller"
            raise VoiceRateError(f"{got}; try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def turn(self) -> asyncio.Lock:
        """Return the current caller's lock for making a voice: one at a time, so that others come in between."""
        return self._turns.setdefault(current_caller().name, asyncio.Lock())
