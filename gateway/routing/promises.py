"""Remembers when refused requests were told to come back, and measures how many of them do. Pure.

    refused ──► make ──(until it is due)──► awaited for a moment ──► late, still known ──► forgotten
                                             └───────── keep ─────────┘ it came back

The caller and the fingerprint identify a request that comes again. While it is awaited, a place is kept free for it,
in proportion to how many of the caller's requests came back before. A request that comes too early counts as new.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable

from servicekit.clock import Clock

AWAITED_S = 1.0
"""Seconds that a request is awaited after its time: the network and this process may be slow."""
KNOWN_S = 30.0
"""Seconds after its time in which a request goes before others of its caller."""
MAX_PROMISES = 16384
"""Promises to one caller; a request that is refused beyond them counts as new when it comes again."""
MAX_CALLERS = 128
"""Callers with promises; beyond these, the caller that was refused longest ago is forgotten."""
_NEWEST_SHARE = 0.1

_Promise = tuple[float, int]
"""Time when the request is due, and its fingerprint."""


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
        self._by_caller.setdefault(caller, _OfCaller()).add(fingerprint, due_s)
        self._by_caller.move_to_end(caller)
        self._forget_idle()

    def keep(self, caller: str, fingerprint: int) -> bool:
        """Say whether a request comes back at its promised time; if so, remove the promise."""
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
        self._share = 1.0
        """Share of the newest promises that were kept in time."""
        self._awaited: list[_Promise] = []
        """Promises that are not late yet; the first due one first."""
        self._late: deque[_Promise] = deque()
        self._due_s: dict[int, list[float]] = {}
        """Fingerprint -> due times of all its promises."""

    @property
    def is_empty(self) -> bool:
        return not self._due_s

    def add(self, fingerprint: int, due_s: float) -> None:
        if len(self._awaited) < MAX_PROMISES:
            insort(self._awaited, (due_s, fingerprint))
            insort(self._due_s.setdefault(fingerprint, []), due_s)

    def keep(self, fingerprint: int, now_s: float) -> bool:
        self.forget(now_s)
        due_s = self._due_s.get(fingerprint)
        if due_s is None or due_s[0] > now_s:
            return False
        promise = (self._drop(fingerprint), fingerprint)
        at = bisect_left(self._awaited, promise)
        if self._awaited[at : at + 1] == [promise]:
            del self._awaited[at]
        self._learn(1.0)
        return True

    def awaited(self, now_s: float, within_s: float) -> float:
        self.forget(now_s)
        return self._share * bisect_right(self._awaited, (now_s + within_s, math.inf))

    def forget(self, now_s: float) -> None:
        late = bisect_left(self._awaited, (now_s - AWAITED_S, -math.inf))
        for promise in self._awaited[:late]:
            self._late.append(promise)
            self._learn(0.0)
        del self._awaited[:late]
        while self._late and self._late[0][0] < now_s - KNOWN_S:
            due_s, fingerprint = self._late.popleft()
            if self._due_s.get(fingerprint, [math.inf])[0] <= due_s:
                self._drop(fingerprint)

    def _drop(self, fingerprint: int) -> float:
        """Forget the oldest promise of a fingerprint."""
        known = self._due_s[fingerprint]
        due_s = known.pop(0)
        if not known:
            del self._due_s[fingerprint]
        return due_s

    def _learn(self, was_kept: float) -> None:
        self._share += _NEWEST_SHARE * (was_kept - self._share)
