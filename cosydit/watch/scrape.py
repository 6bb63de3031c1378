"""What a service's metrics said at one moment, and what happened between two. Knows no metric by name, no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
_BOUND = "le"


@dataclass(frozen=True)
class Scrape:
    """One page of metrics."""

    at_s: float
    """When it was read, on a clock that only differences of matter."""
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

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a name's samples for each value of a label."""
        sums: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums


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

    def gauge(self, name: str, **labels: str) -> float | None:
        """Return what a gauge says now."""
        return self.after.total(name, **labels)

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
        return quantile(list(self._buckets(histogram)), share)

    def _buckets(self, histogram: str) -> Iterator[tuple[float, float]]:
        name = f"{histogram}_bucket"
        bounds = self.after.by(name, _BOUND)
        for bound in sorted(bounds, key=float):
            yield float(bound), self.growth(name, **{_BOUND: bound}) or 0.0


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
