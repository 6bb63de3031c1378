"""Merges the metrics of several processes into those of one gateway.

Each process tells its own once a second. Counters, histograms and most gauges add up. What every process sees of the
same replicas does not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.telemetry.metrics import PREFIX

Families = list[list[Any]]
"""Name, kind, text and samples of each metric; a sample is its name, labels and value, of types that JSON has."""
_LASTING = ("counter", "histogram")
_FIRST = (f"{PREFIX}_replicas",)
"""Metrics taken from one process, which speaks for all."""
_LEAST = (f"{PREFIX}_replica_free_slots", "process_start_time_seconds")
_GREATEST = (f"{PREFIX}_replica_step_seconds",)
_CREATED = "_created"
"""Ending of the samples that tell when counting began."""


def snapshot(registry: CollectorRegistry) -> Families:
    """Return what a registry tells now; from any thread."""
    return [
        [each.name, each.type, each.documentation, [[one.name, one.labels, one.value] for one in each.samples]]
        for each in registry.collect()
    ]


def lasting(families: Families) -> Families:
    """Return the counters of a process that has ended, which must not be lost."""
    return [family for family in families if family[1] in _LASTING]


def merged(of_processes: Mapping[int, Families]) -> Families:
    """Return the metrics of several processes, by their numbers, as those of one; the least number speaks first."""
    kinds: dict[str, list[str]] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for _, families in sorted(of_processes.items()):
        for name, kind, text, samples in families:
            kinds.setdefault(name, [kind, text])
            is_first = name not in values
            found = values.setdefault(name, {})
            if name in _FIRST and not is_first:
                continue
            for sample, labels, value in samples:
                key = (sample, tuple(sorted(labels.items())))
                found[key] = _one(name, sample)(found[key], value) if key in found else value
    return [
        [name, *kinds[name], [[sample, dict(labels), value] for (sample, labels), value in values[name].items()]]
        for name in kinds
    ]


def _one(name: str, sample: str) -> Callable[[float, float], float]:
    """Return what makes one value of two."""
    if name in _LEAST or sample.endswith(_CREATED):
        return min
    return max if name in _GREATEST else operator.add


class GatheredMetrics(Collector):
    """Returns the metrics of all processes to a scraper's thread."""

    def __init__(self, gather: Callable[[], Families]) -> None:
        """Keep the function that asks all processes."""
        self._gather = gather

    def describe(self) -> list[Metric]:
        """Say nothing, or a registry would ask when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        for name, kind, text, samples in self._gather():
            metric = Metric(name, text, kind)
            metric.samples = [Sample(sample, labels, value) for sample, labels, value in samples]
            yield metric


def gathered_registry(gather: Callable[[], Families]) -> CollectorRegistry:
    """Return a registry that tells what `gather` returns, which is called in the thread of a scraper."""
    registry = CollectorRegistry()
    registry.register(GatheredMetrics(gather))
    return registry
