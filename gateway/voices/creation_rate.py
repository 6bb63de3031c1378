"""How often one caller may create something: at most so many times in any minute. Pure; time is passed in."""

from __future__ import annotations

from collections import OrderedDict, deque

WINDOW_S = 60.0
_MAX_CALLERS = 4096
"""Callers remembered; the one seen longest ago is forgotten first."""


class CreationRate:
    """Remembers who created when, within the last minute."""

    def __init__(self, per_minute: int) -> None:
        """Allow `per_minute` creations a caller."""
        self._per_minute = per_minute
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, caller: str, now_s: float) -> float:
        """Count a creation if it is allowed now.

        Returns:
            0 if it is; else the seconds until it would be.
        """
        times = self._times.setdefault(caller, deque())
        self._times.move_to_end(caller)
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        if len(times) >= self._per_minute:
            return times[0] + WINDOW_S - now_s
        times.append(now_s)
        while len(self._times) > _MAX_CALLERS:
            self._times.popitem(last=False)
        return 0.0
