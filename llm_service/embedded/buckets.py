"""Counts values by size. Knows nothing of metrics' names or of threads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Buckets:
    """How many values were at most so large, at one moment."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    """Of each bound, cumulative; the last one counts all values."""
    total: float = 0.0
    """Sum of the values."""


class BucketCounts:
    """Grows by a value at a time; written by one thread, read by any."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Take rising upper bounds."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def read(self) -> Buckets:
        """Return what was counted so far."""
        cumulative, so_far = [], 0
        for count in list(self._counts):
            so_far += count
            cumulative.append(so_far)
        return Buckets(self._bounds, tuple(cumulative), self._total)
