"""How long streams hold their slots, learnt from those that ended. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

REMEMBERED = 256
"""Enough for a mean within some percent, and few enough to follow a change of the load within minutes."""


class StreamDurations:
    """The newest durations, and what they say of streams that are still open."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        self._tail_sums: list[float] = []

    def add(self, duration_s: float) -> None:
        """Learn from a stream that ended."""
        if len(self._newest) == REMEMBERED:
            oldest = self._newest.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._newest.append(duration_s)
        insort(self._sorted, duration_s)
        self._tail_sums = []

    @property
    def mean_s(self) -> float | None:
        """Mean duration; None before the first stream has ended."""
        return sum(self._sorted) / len(self._sorted) if self._sorted else None

    def remaining_s(self, age_s: float) -> float:
        """Expect how much longer a stream of that age holds its slot: the mean of those that lasted longer than that.

        One that is older than all known, and any before the first has ended, is given as long again as its age.
        """
        longer = bisect_right(self._sorted, age_s)
        if longer == len(self._sorted):
            return age_s
        if not self._tail_sums:
            self._tail_sums = [*accumulate(reversed(self._sorted))][::-1]
        return self._tail_sums[longer] / (len(self._sorted) - longer) - age_s
