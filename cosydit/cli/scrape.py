"""What the services' metrics said at one moment, and what happened between two: for `cosydit top`.

Knows no metric by name. As much is kept as the view's window needs.
"""

from __future__ import annotations

import http.client
import math
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client.parser import text_string_to_metric_families

from servicekit.clock import Clock

Labels = frozenset[tuple[str, str]]
NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Scrape:
    """One page of metrics."""

    at_s: float
    """Time when the page was read, in seconds; only differences have a meaning."""
    samples: Mapping[str, Mapping[Labels, float]]
    """Sample name -> labels -> value."""

    @classmethod
    def parse(cls, text: str, at_s: float) -> Scrape:
        """Read Prometheus' text form.

        Raises:
            ValueError: it is something else.
        """
        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return cls(at_s, samples)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of all samples of a name that have these labels; None if there is none."""
        wanted = set(labels.items())
        values = [value for found, value in self.samples.get(name, {}).items() if wanted <= found]
        return sum(values) if values else None


EMPTY = Scrape(0.0, {})


@dataclass(frozen=True)
class Window:
    """Two scrapes of one service; the earlier one is empty when all since its start is asked for."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float | None:
        """Time between them; None since the start, which nobody knows."""
        return self.after.at_s - self.before.at_s if self.before is not EMPTY else None

    def growth(self, name: str, **labels: str) -> float | None:
        """Return by how much a counter grew; one that restarted counts from 0."""
        after = self.after.total(name, **labels)
        if after is None:
            return None
        grown = after - (self.before.total(name, **labels) or 0.0)
        return grown if grown >= 0 else after

    def rate(self, name: str, **labels: str) -> float | None:
        """Return a counter's growth a second."""
        grown = self.growth(name, **labels)
        return None if grown is None or not self.seconds else grown / self.seconds

    def ratio(self, part: str, whole: str) -> float | None:
        """Return the growth of one counter for each of another; None if that stood still."""
        grown, base = self.growth(part), self.growth(whole)
        return grown / base if grown is not None and base else None

    def quantile(self, histogram: str, share: float) -> float | None:
        """Return a quantile of what a histogram counted, as PromQL's `histogram_quantile` does; None if nothing."""
        name = f"{histogram}_bucket"
        bounds = {dict(labels).get("le", "") for labels in self.after.samples.get(name, {})}
        counts = [(float(bound), self.growth(name, le=bound) or 0.0) for bound in bounds]
        return quantile(sorted(counts), share)


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Interpolate in cumulative buckets (upper bound, count) in rising order; None if they are empty."""
    if not buckets or not buckets[-1][1]:
        return None
    rank, lower, below = share * buckets[-1][1], None, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return lower
            start = min(bound, 0.0) if lower is None else lower
            within = count - below
            return bound if lower is None and bound <= 0 else start + (bound - start) * ((rank - below) / within)
        lower, below = bound, count
    return lower


TIMEOUT_S = 2.0
_ERRORS = (urllib.error.URLError, OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True)
class WatchedService:
    """One process: where it is read, and what it said; None while it does not tell, and then why."""

    address: str
    window: Window | None
    problem: str = NO_ANSWER


Looks = Mapping[str, Sequence[WatchedService]]
"""Kind of service (gateway, token2wav or llm) -> its processes."""


class Follower:
    """Follows one endpoint."""

    def __init__(self, url: str, window_s: float, clock: Clock) -> None:
        """Read nothing yet; the view tells of the last `window_s` seconds, and of all time at its first reading."""
        self._url = url
        self._window_s = window_s
        self._clock = clock
        self._scrapes: deque[Scrape] = deque()

    def read(self) -> WatchedService:
        """Read it once; what was kept is forgotten when it does not answer, as it may be another process then."""
        address = self._url.removeprefix("http://").removesuffix("/metrics")
        try:
            with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
                return WatchedService(address, self._keep(Scrape.parse(answer.read().decode(), self._clock.now())))
        except _ERRORS as error:
            self._scrapes.clear()
            return WatchedService(address, None, _problem(error))

    def _keep(self, scrape: Scrape) -> Window:
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and self._scrapes[1].at_s <= scrape.at_s - self._window_s:
            self._scrapes.popleft()
        return Window(self._scrapes[0] if len(self._scrapes) > 1 else EMPTY, scrape)


def _problem(error: Exception) -> str:
    """Say why there are no metrics, and what to do where that is known."""
    if not isinstance(error, urllib.error.HTTPError):
        return NO_ANSWER
    hint = _HINTS.get(error.code, "")
    return f"{error.code}{f': {hint}' if hint else f' {error.reason}'}"


_HINTS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "needs --metrics-port PORT of the gateway, as it has API keys",
    HTTPStatus.FORBIDDEN: "needs --metrics-port PORT of the gateway, as it is guarded",
    HTTPStatus.NOT_FOUND: "no metrics there; is it another port?",
}
