"""Decides which callers may speak and how much: one object behind all doors. Knows no protocol.

door ── authenticate ──► Caller ── calling() ──► dialect ──► pipeline ── speaking() ──► audio

The audio of a caller is counted by the minute, so a day takes 1441 numbers at most; a minute counts until its last
second has left the hour or the day.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from gateway.access.caller import Caller, CallerLimits, current_caller
from gateway.access.connections import Connections
from gateway.access.keys import MAX_KEY_CHARACTERS, KeyBook
from gateway.core import CallerText, UnspokenText
from gateway.errors import AudioLimitError, StreamLimitError, UnauthenticatedError
from servicekit.clock import Clock

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
_SLICE_S = 60.0


@dataclass
class _Slice:
    ends_s: float
    audio_s: float


class AudioUsage:
    """Seconds of audio by the minute, the last day's."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._slices: deque[_Slice] = deque()

    def add(self, audio_s: float, now_s: float) -> None:
        """Count audio; `now_s` never goes back."""
        self._forget(now_s)
        if not self._slices or self._slices[-1].ends_s <= now_s:
            self._slices.append(_Slice((now_s // _SLICE_S + 1) * _SLICE_S, 0.0))
        self._slices[-1].audio_s += audio_s

    def within(self, window_s: float, now_s: float) -> float:
        """Return the seconds of audio given in the last `window_s`, a day at most."""
        return sum(each.audio_s for each in self._slices if each.ends_s > now_s - window_s)

    def wait_s(self, limit_s: float, window_s: float, now_s: float) -> float:
        """Return how long it takes until less than `limit_s` of audio lies within the window; 0 if that is so now."""
        left_s = self.within(window_s, now_s)
        if left_s < limit_s:
            return 0.0
        wait_s = 0.0
        for each in self._slices:
            if left_s < limit_s:
                break
            if each.ends_s > now_s - window_s:
                left_s -= each.audio_s
                wait_s = each.ends_s + window_s - now_s
        return wait_s

    def told(self) -> list[tuple[float, float]]:
        """Return it as numbers, for another process of this machine."""
        return [(each.ends_s, each.audio_s) for each in self._slices]

    def take_over(self, told: Iterable[tuple[float, float]]) -> None:
        """Begin with what another process told."""
        self._slices = deque(_Slice(ends_s, audio_s) for ends_s, audio_s in told)

    def _forget(self, now_s: float) -> None:
        while self._slices and self._slices[0].ends_s <= now_s - DAY_S:
            self._slices.popleft()


STREAM_RETRY_S = 1.0
"""Seconds until a caller with too many open streams may try again: most streams are under way already."""
MAX_CALLERS = 4096
"""Most callers without an open stream that are remembered; the one that spoke longest ago is forgotten first."""


@dataclass
class CallerUsage:
    """The open streams, audio and text of one caller."""

    streams: int = 0
    """Streams open now in this process."""
    audio: AudioUsage = field(default_factory=AudioUsage)
    text: CallerText = field(default_factory=CallerText)
    characters_elsewhere: int = 0
    """Characters of open sessions in the other processes of this gateway."""
    untold_audio_s: float = 0.0
    """Seconds of `audio` that the other processes were not told of yet."""


class Usages:
    """The accounts of callers by name; when there are too many, those with nothing open are forgotten."""

    def __init__(self) -> None:
        """Begin without callers."""
        self._of: OrderedDict[str, CallerUsage] = OrderedDict()
        self._touched: set[str] = set()

    def of(self, name: str) -> CallerUsage:
        """Return a caller's account, which goes on counting."""
        usage = self._of.setdefault(name, CallerUsage())
        self._of.move_to_end(name)
        self._touched.add(name)
        return usage

    def find(self, name: str) -> CallerUsage | None:
        """Return a caller's account; None if it is not remembered."""
        return self._of.get(name)

    def take_touched(self) -> set[str]:
        """Return the callers that `of` was asked for since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def items(self) -> list[tuple[str, CallerUsage]]:
        """Return all callers that are remembered."""
        return list(self._of.items())

    def forget_idle(self) -> None:
        """If there are too many callers, forget those with nothing open that spoke longest ago."""
        for name in list(self._of) if len(self._of) > MAX_CALLERS else ():
            if len(self._of) <= MAX_CALLERS:
                return
            if not self._of[name].streams and not self._of[name].text.sessions:
                del self._of[name]
                self._touched.discard(name)


class StreamCount(Protocol):
    """Counts the streams of every caller, over all processes of a gateway."""

    async def take(self, caller: str, limit: int | None) -> int | None:
        """Count one more stream, unless the caller has `limit` already: then return how many it has."""
        ...

    def give_back(self, caller: str) -> None:
        """Count one less."""
        ...


class Account:
    """One open stream's account of what its caller got."""

    def __init__(self, caller: Caller, usage: CallerUsage, clock: Clock) -> None:
        """Begin with nothing delivered; `Access.speaking` makes it."""
        self._caller = caller
        self._usage = usage
        self._clock = clock

    def deliver(self, audio_s: float) -> None:
        """Count audio that the caller has got."""
        self._usage.audio.add(audio_s, self._clock.now())
        self._usage.untold_audio_s += audio_s

    def refusal(self) -> AudioLimitError | None:
        """Return why the caller may have no more audio now, if it may not."""
        limits, now_s = self._caller.limits, self._clock.now()
        windows = ((limits.audio_s_per_hour, HOUR_S, "hour"), (limits.audio_s_per_day, DAY_S, "day"))
        for limit_s, window_s, window in reversed(windows):
            wait_s = 0.0 if limit_s is None else self._usage.audio.wait_s(limit_s, window_s, now_s)
            if wait_s > 0:
                got = f"the audio of {self._caller.name!r} is used up, which is {limit_s:g} s in any {window}"
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
        streams: StreamCount | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Keep the rules; no caller is known yet.

        Args:
            keys: without them anyone may call, and callers are told apart by their addresses.
            limits: of each address; keys bring their own.
            clock: of the limits.
            streams: counts those of all processes; None: this one is alone.
            connections: of all doors of this process; None: with the default limits.
        """
        self.connections = connections or Connections()
        self.usages = Usages()
        self._count = streams or _OwnStreams(self.usages)
        self._keys = keys
        self._limits = limits
        self._clock = clock

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key."""
        return self._keys is not None

    def authenticate(self, presented: bytes | None, address: str) -> Caller:
        """Return the caller.

        Args:
            presented: the key that came, if one did.
            address: it came from.

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
        return caller.name if caller is not None and caller.has_key else ""

    def caller_without_key(self, address: str) -> Caller:
        """Return the caller at a door that needs no key, with the limits of an address."""
        return Caller(address, self._limits)

    def usage(self, name: str) -> CallerUsage:
        """Return a caller's account, which goes on counting."""
        return self.usages.of(name)

    def unspoken_text(self, caller: Caller) -> UnspokenText:
        """Begin to count the text of one of the caller's sessions."""
        usage = self.usage(caller.name)
        return UnspokenText(caller.limits.unspoken_characters, usage.text, lambda: usage.characters_elsewhere)

    @asynccontextmanager
    async def speaking(self, caller: Caller) -> AsyncIterator[Account]:
        """Hold one of the caller's streams open.

        Raises:
            StreamLimitError: it has none left.
            AudioLimitError: its audio is used up.
        """
        limit = caller.limits.streams
        if (open_already := await self._count.take(caller.name, limit)) is not None:
            got = f"{caller.name!r} speaks in {open_already} streams already, the limit is {limit}"
            raise StreamLimitError(f"{got}; try again when one has ended", retry_after_s=STREAM_RETRY_S)
        usage = self.usage(caller.name)
        usage.streams += 1
        try:
            account = Account(caller, usage, self._clock)
            if (refusal := account.refusal()) is not None:
                raise refusal
            yield account
        finally:
            usage.streams -= 1
            self._count.give_back(caller.name)
            self.usages.forget_idle()


class _OwnStreams:
    """Implements `StreamCount` for a process that is alone."""

    def __init__(self, usages: Usages) -> None:
        self._usages = usages

    async def take(self, caller: str, limit: int | None) -> int | None:
        streams = self._usages.of(caller).streams
        return streams if limit is not None and streams >= limit else None

    def give_back(self, caller: str) -> None:
        """Do nothing: the usage has counted it."""
