"""When slots come free, from how long streams last and how old the open ones are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.routing.durations import StreamDurations
from servicekit.clock import Clock

MANY_STREAMS = 256
"""From here on the forecast is made anew only now and then: a storm of refusals must not become a storm of sorting."""
FORECAST_S = 0.1


@dataclass(frozen=True)
class OpenStreams:
    """What is open at one replica."""

    opened_s: list[float]
    """When our own streams were opened."""
    others: int
    """Streams of other gateways; nothing is known of their ages."""


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
        now_s = self._clock.now()
        if len(self._free_at_s) < MANY_STREAMS or now_s - self._made_s > FORECAST_S:
            self._free_at_s = sorted(self._forecast(now_s, streams()))
            self._made_s = now_s
        if not self._free_at_s:
            return None
        rounds, index = divmod(nth, len(self._free_at_s))
        return max(0.0, self._free_at_s[index] - now_s) + rounds * (self._durations.mean_s or 0.0)

    def _forecast(self, now_s: float, streams: Iterable[OpenStreams]) -> list[float]:
        free_at_s = []
        for replica in streams:
            free_at_s += [now_s + self._durations.remaining_s(now_s - opened_s) for opened_s in replica.opened_s]
            if (mean_s := self._durations.mean_s) is not None:
                free_at_s += [now_s + mean_s * (nth + 1) / replica.others for nth in range(replica.others)]
        return free_at_s
