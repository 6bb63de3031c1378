"""When slots come free, from how long streams lasted that ended and how old the open ones are. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

from servicekit.clock import Clock

REMEMBERED = 256
"""Durations remembered: enough for a mean within some percent, few enough to follow the load within minutes."""


class StreamDurations:
    """Keeps the newest durations of streams, and forecasts from them when open streams end."""

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


MANY_STREAMS = 256
"""Number of streams above which the forecast is renewed only now and then, as sorting costs CPU."""
FORECAST_S = 0.1


@dataclass(frozen=True)
class OpenStreams:
    """What is open at one replica."""

    opened_s: list[float]
    """Times when our own streams were opened."""
    others: int
    """Number of streams of other gateways, whose ages are unknown."""


class SlotForecast:
    """Forecasts when the next slots come free."""

    def __init__(self, clock: Clock, durations: StreamDurations) -> None:
        """Keep where time and durations come from."""
        self._clock = clock
        self._durations = durations
        self._free_at_s: list[float] = []
        self._made_s = float("-inf")

    def nth_s(self, nth: int, streams: Callable[[], Iterable[OpenStreams]]) -> float | None:
        """Expect the seconds until the slot number `nth` (from 0) comes free; None if nothing is open.

        Beyond the open streams the forecast goes on with the mean duration: who comes next holds the slot for so long.
        """
        now_s = self._renewed(streams)
        if not self._free_at_s:
            return None
        rounds, index = divmod(nth, len(self._free_at_s))
        return max(0.0, self._free_at_s[index] - now_s) + rounds * (self._durations.mean_s or 0.0)

    def ends_within(self, within_s: float, streams: Callable[[], Iterable[OpenStreams]]) -> int:
        """Expect how many of the open streams end within some seconds."""
        now_s = self._renewed(streams)
        return bisect_right(self._free_at_s, now_s + within_s)

    def _renewed(self, streams: Callable[[], Iterable[OpenStreams]]) -> float:
        """Make the forecast anew if it is old; returns the time."""
        now_s = self._clock.now()
        if len(self._free_at_s) < MANY_STREAMS or now_s - self._made_s > FORECAST_S:
            self._free_at_s = sorted(self._forecast(now_s, streams()))
            self._made_s = now_s
        return now_s

    def _forecast(self, now_s: float, streams: Iterable[OpenStreams]) -> list[float]:
        free_at_s = []
        for replica in streams:
            free_at_s += [now_s + self._durations.remaining_s(now_s - opened_s) for opened_s in replica.opened_s]
            if (mean_s := self._durations.mean_s) is not None:
                free_at_s += [now_s + mean_s * (nth + 1) / replica.others for nth in range(replica.others)]
        return free_at_s
