"""Decides which callers may speak and how much: one object behind all doors. Knows no protocol.

door ── authenticate ──► Caller ── calling() ──► dialect ──► pipeline ── speaking() ──► audio
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.access.caller import Caller, CallerLimits, current_caller
from gateway.access.connections import Connections
from gateway.access.keys import MAX_KEY_CHARACTERS, KeyBook
from gateway.core import UnspokenText
from gateway.errors import AudioLimitError, StreamLimitError, UnauthenticatedError
from gateway.ledger import DAY_S, HOUR_S, CallerLedger
from servicekit.clock import Clock

STREAM_RETRY_S = 1.0
"""Seconds until a caller with too many open streams may try again: most streams are under way already."""


@dataclass(frozen=True)
class Account:
    """One open stream's account of what its caller got."""

    caller: Caller
    ledger: CallerLedger

    def deliver(self, audio_s: float) -> None:
        """Count audio that the caller has got, if its audio is limited."""
        limits = self.caller.limits
        if limits.audio_s_per_hour is not None or limits.audio_s_per_day is not None:
            self.ledger.add_audio(self.caller.name, audio_s)

    def refusal(self) -> AudioLimitError | None:
        """Return why the caller may have no more audio now, if it may not."""
        limits = self.caller.limits
        windows = ((limits.audio_s_per_hour, HOUR_S, "hour"), (limits.audio_s_per_day, DAY_S, "day"))
        for limit_s, window_s, window in reversed(windows):
            if limit_s is None:
                continue
            if (wait_s := self.ledger.audio_wait_s(self.caller.name, limit_s, window_s)) > 0:
                got = f"the audio of {self.caller.name!r} is used up, which is {limit_s:g} s in any {window}"
                advice = f"try again in {wait_s:.0f} s, or ask for a higher limit"
                return AudioLimitError(f"{got}; {advice}", retry_after_s=wait_s)
        return None


class Access:
    """Knows callers by their keys and holds them to their limits."""

    def __init__(
        self,
        keys: KeyBook | None,
        limits: CallerLimits,
        clock: Clock,
        ledger: CallerLedger | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Keep the rules; no caller is known yet.

        Args:
            keys: without them anyone may call, and callers are told apart by their addresses.
            limits: of each address; keys bring their own.
            ledger: the account of all processes; None: this one is alone.
            connections: of all doors of this process; None: with the default limits.
        """
        self.connections = connections or Connections()
        self.ledger = ledger or CallerLedger(clock)
        self._unspoken = Counter[str]()
        self.has_keys = keys is not None
        """Whether callers need a key."""
        self._keys = keys
        self._limits = limits

    def authenticate(self, presented: bytes | None, address: str) -> Caller:
        """Return the caller.

        Raises:
            UnauthenticatedError: a key is needed and this is none.
        """
        if self._keys is None:
            return self.caller_without_key(address)
        if presented is None:
            expected = "send it as 'Authorization: Bearer KEY' (metadata in gRPC) or 'xi-api-key: KEY'"
            raise UnauthenticatedError(f"no API key came; {expected}")
        key = self._keys.find(presented) if len(presented) <= MAX_KEY_CHARACTERS else None
        if key is None:
            raise UnauthenticatedError("the API key is not known here; check it, or ask the operator for one")
        return Caller(key.name, key.limits, has_key=True)

    def key_of_call(self) -> str | None:
        """Return the name of the key that the call under way came with; empty if it came without one.

        None where there are no keys.
        """
        if self._keys is None:
            return None
        caller = current_caller()
        return caller.name if caller.has_key else ""

    def caller_without_key(self, address: str) -> Caller:
        """Return the caller at a door that needs no key, with the limits of an address."""
        return Caller(address, self._limits)

    def unspoken_text(self, caller: Caller) -> UnspokenText:
        """Begin to count the text of one of the caller's sessions."""
        return UnspokenText(caller.limits.unspoken_characters, self._unspoken, caller.name)

    @asynccontextmanager
    async def speaking(self, caller: Caller) -> AsyncIterator[Account]:
        """Hold one of the caller's streams open.

        Raises:
            StreamLimitError: it has none left.
            AudioLimitError: its audio is used up.
        """
        limit = caller.limits.streams
        if limit is not None and (open_already := self.ledger.take_stream(caller.name, limit)) is not None:
            got = f"{caller.name!r} speaks in {open_already} streams already, the limit is {limit}"
            raise StreamLimitError(f"{got}; try again when one has ended", retry_after_s=STREAM_RETRY_S)
        try:
            account = Account(caller, self.ledger)
            if (refusal := account.refusal()) is not None:
                raise refusal
            yield account
        finally:
            if limit is not None:
                self.ledger.give_stream_back(caller.name)
