"""Reads metrics as a scraper does."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.metrics import PREFIX


def samples_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Parse Prometheus' text form: (name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Reading:
    """One scrape of a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._samples = samples_of(generate_latest(registry).decode())

    def value(self, name: str, **labels: str) -> float:
        """Return a sample of the gateway's; KeyError if there is none."""
        return self._samples[f"{PREFIX}_{name}", frozenset(labels.items())]

    def above_zero(self, name: str) -> set[frozenset[tuple[str, str]]]:
        """Return the label sets of a family that were counted."""
        return {key[1] for key, value in self._samples.items() if key[0] == f"{PREFIX}_{name}" and value > 0}
