"""Voices that token2wav knows, and how many new ones a caller may bring along with its requests.

A voice that token2wav knows costs nothing and counts for nothing. A new one takes its place among all streams: seconds
of computing, and up to 170 MB of memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakValueDictionary

from gateway.core import RegisteredVoice
from gateway.errors import VoiceRateError
from gateway.ledger import CallerLedger

MAX_VOICES = 1024


class KnownVoices:
    """What token2wav answered for the voices used last, by the keys of `VoiceRegistry`."""

    def __init__(self, max_voices: int = MAX_VOICES) -> None:
        """Know none; of more than `max_voices` the least recently used goes first."""
        self._max_voices = max_voices
        self._voices: OrderedDict[str, RegisteredVoice] = OrderedDict()

    def find(self, key: str) -> RegisteredVoice | None:
        """Return a voice, which is thereby used; None if it must be registered."""
        voice = self._voices.get(key)
        if voice is not None:
            self._voices.move_to_end(key)
        return voice

    def forget(self, key: str) -> None:
        """Have the voice registered again when it is next needed; harmless if it is not known."""
        self._voices.pop(key, None)

    def registered(self, key: str, voice: RegisteredVoice) -> None:
        """Remember what token2wav has answered."""
        self._voices[key] = voice
        self._voices.move_to_end(key)
        while len(self._voices) > self._max_voices:
            self._voices.popitem(last=False)


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
