"""Remembers when refused requests were told to come back, and measures how many of them do. Pure.

    refused ──► make ──(until it is due)──► awaited for a moment ──► late, still known ──► forgotten
                                             └───────── keep ─────────┘ it came back

The caller and the fingerprint identify a request that comes again. While it is awaited, a place is kept free for it,
in proportion to how many of the caller's newest promises were kept. When several in a row were not, their crowd has
gone: what was promised until the last one that was kept, and until the newest of those that were not, is written off,
and no place is kept for it. The others count by how many of the caller's promises were kept in the long run.

A request that comes too early counts as new. Its promise is forgotten, unless several requests have its fingerprint.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable

from servicekit.clock import Clock

AWAITED_S = 1.0
"""Seconds that a request is awaited after its time: the network and this process may be slow."""
KNOWN_S = 30.0
"""Seconds after its time in which a request goes before others of its caller."""
SAME_S = 1.0
"""Seconds after a promise before which the same fingerprint is another request's: no caller is told to come sooner."""
MAX_PROMISES = 16384
"""Promises to one caller; a request that is refused beyond them counts as new when it comes again."""
MAX_CALLERS = 128
"""Callers with promises; beyond these, the caller that was refused longest ago is forgotten."""
_NEWEST_SHARE, _NEWEST_LONG_SHARE = 0.25, 0.05
"""Weight of the newest promise in the share of those kept: of the newest ones, and in the long run."""
_GONE_SHARE = 0.25
"""Times the long run's share below which a crowd has gone: six promises in a row were not kept."""

_Promise = tuple[float, int, float]
"""Time when the request is due, its fingerprint, and the time when it was told so."""


class Promises:
    """The promises to all callers."""

    def __init__(self, clock: Clock) -> None:
        """Begin without any."""
        self._clock = clock
        self._by_caller: OrderedDict[str, _OfCaller] = OrderedDict()
        """Ordered by the last refusal; the newest comes last."""

    def ahead_of(self, caller: str) -> float:
        """Expect how many come before one more of the caller's, if callers take turns."""
        own = self.awaited(math.inf, caller.__eq__)
        now_s = self._clock.now()
        others = (each.awaited(now_s, math.inf) for name, each in self._by_caller.items() if name != caller)
        return own + sum(min(other, own + 1.0) for other in others)

    def make(self, caller: str, fingerprint: int, due_s: float) -> None:
        """Note when a refused request is to come."""
        self._by_caller.setdefault(caller, _OfCaller()).add(fingerprint, due_s, self._clock.now())
        self._by_caller.move_to_end(caller)
        self._forget_idle()

    def keep(self, caller: str, fingerprint: int) -> bool:
        """Say whether a request comes back at its promised time; if it does, or too early, remove the promise."""
        known = self._by_caller.get(caller)
        return known is not None and known.keep(fingerprint, self._clock.now())

    def awaited(self, within_s: float, is_meant: Callable[[str], bool]) -> float:
        """Expect how many requests come from now on, or within so many seconds.

        Args:
            within_s: due by then; 0: those that should be here already, inf: all.
            is_meant: of which callers.
        """
        now_s = self._clock.now()
        return sum(each.awaited(now_s, within_s) for name, each in self._by_caller.items() if is_meant(name))

    def _forget_idle(self) -> None:
        if len(self._by_caller) > MAX_CALLERS:
            self._by_caller.popitem(last=False)
        name, oldest = next(iter(self._by_caller.items()))
        oldest.forget(self._clock.now())
        if oldest.is_empty:
            del self._by_caller[name]


class _OfCaller:
    """The promises to one caller."""

    def __init__(self) -> None:
        self._share = self._long_share = 1.0
        """Share of promises that were kept in time: of the newest ones, and in the long run."""
        self._awaited: list[_Promise] = []
        """Promises that are neither late nor written off; the first due one first."""
        self._past: list[_Promise] = []
        """Promises that are; the first due one first."""
        self._told: dict[int, list[_Promise]] = {}
        """Fingerprint -> all its promises, the first due one first."""
        self._gone_s = -math.inf
        """Time until which the crowd was there, or was told something, whose promises are not kept now."""

    @property
    def is_empty(self) -> bool:
        return not self._told

    def add(self, fingerprint: int, due_s: float, now_s: float) -> None:
        if len(self._awaited) + len(self._past) < MAX_PROMISES:
            promise = (due_s, fingerprint, now_s)
            insort(self._awaited, promise)
            insort(self._told.setdefault(fingerprint, []), promise)

    def keep(self, fingerprint: int, now_s: float) -> bool:
        self.forget(now_s)
        told = self._told.get(fingerprint)
        if told is None:
            return False
        due_s, _, told_s = told[0]
        is_due = due_s <= now_s
        if is_due or (len(told) == 1 and now_s - told_s >= SAME_S):
            self._drop(told[0])
        if is_due:
            self._learn(1.0)
            self._gone_s = now_s
        return is_due

    def awaited(self, now_s: float, within_s: float) -> float:
        self.forget(now_s)
        return self._share * bisect_right(self._awaited, (now_s + within_s, math.inf, 0.0))

    def forget(self, now_s: float) -> None:
        while self._awaited and self._awaited[0][0] < now_s - AWAITED_S:
            late = self._awaited.pop(0)
            insort(self._past, late)
            self._learn(0.0)
            self._gone_s = max(self._gone_s, late[2])
            if self._share < _GONE_SHARE * self._long_share:
                self._write_off()
        while self._past and self._past[0][0] < now_s - KNOWN_S:
            self._drop(self._past[0])

    def _write_off(self) -> None:
        gone = [promise for promise in self._awaited if promise[2] <= self._gone_s]
        self._awaited = [promise for promise in self._awaited if promise[2] > self._gone_s]
        self._past = sorted(self._past + gone)
        self._share = self._long_share

    def _drop(self, promise: _Promise) -> None:
        told = self._told[promise[1]]
        told.remove(promise)
        if not told:
            del self._told[promise[1]]
        for promises in (self._awaited, self._past):
            at = bisect_left(promises, promise)
            if promises[at : at + 1] == [promise]:
                del promises[at]
                return

    def _learn(self, was_kept: float) -> None:
        self._share += _NEWEST_SHARE * (was_kept - self._share)
        self._long_share += _NEWEST_LONG_SHARE * (was_kept - self._long_share)
