"""The embedded server's Prometheus metrics (`cosydit_llm_*`), written from its engine's counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from llm_service.embedded.types import BucketCounts, Buckets, EngineStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
PREFIX = "cosydit_llm"
BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def metrics_text(stats: EngineStats) -> str:
    """Return the counters in Prometheus' text form."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(stats))
    return generate_latest(registry).decode()


class _Snapshot(Collector):
    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        for name, value, text in (
            ("requests_running", stats.running, "Requests that hold a slot"),
            ("requests_waiting", stats.waiting, "Requests that wait for a slot or their first token"),
            ("slots", stats.slots, "Slots of the key-value cache"),
            ("slots_free", stats.free_slots, "Slots nobody holds"),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
        for name, value, text in (
            ("steps_total", stats.steps, "Engine steps"),
            ("tokens_total", stats.generated_tokens, "Tokens drawn, end tokens included"),
            ("requests_finished_total", stats.finished, "Requests that ended by themselves"),
            ("requests_aborted_total", stats.aborted, "Requests given up by their callers"),
            ("requests_failed_total", stats.failed, "Requests that failed while running"),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value)
        yield _histogram("first_token_seconds", "From a request's arrival to its first token", stats.first_token)
        yield _histogram("step_batch_size", "Requests that a step decoded together", _by_rows(stats.steps_by_rows))


def _by_rows(steps_by_rows: Mapping[int, int]) -> Buckets:
    counts = BucketCounts(BATCH_SIZE_BUCKETS)
    for rows, steps in steps_by_rows.items():
        counts.add(float(rows), steps)
    return counts.read()


def _histogram(name: str, text: str, buckets: Buckets) -> HistogramMetricFamily:
    labels = [*(f"{bound:g}" for bound in buckets.bounds), "+Inf"]
    values = [(label, float(count)) for label, count in zip(labels, buckets.counts, strict=True)]
    return HistogramMetricFamily(f"{PREFIX}_{name}", text, buckets=values, sum_value=buckets.total)
