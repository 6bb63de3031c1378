"""The gateway's Prometheus metrics; `call_observer` writes those of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.errors import HTTP_SERVER_ERROR, known_codes, wire_status
from gateway.routing.replica import Replica, ReplicaState
from gateway.speech.guard import Trouble
from gateway.speech.request import GuardOutcome
from gateway.telemetry.call import DIALECTS

_LEFT = (asyncio.CancelledError, GeneratorExit)


class Outcome(str, Enum):
    """Value of the label `outcome`."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The caller left."""
    INVALID = "invalid"
    """The caller made a mistake (4xx)."""
    REFUSED = "refused"
    """A limit was reached, or there was no room (429)."""
    FAILED = "failed"
    """This gateway or a service failed (5xx)."""


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome that an end counts as."""
    if error is None:
        return Outcome.COMPLETED
    if isinstance(error, _LEFT):
        return Outcome.CANCELLED
    return outcome_of_status(wire_status(error).http)


def outcome_of_status(status: int) -> Outcome:
    """Return the outcome that an HTTP error status counts as."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Outcome.REFUSED
    return Outcome.FAILED if status >= HTTP_SERVER_ERROR else Outcome.INVALID


PREFIX = "cosydit_gateway"
FIRST_AUDIO_BUCKETS_S = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
SLACK_BUCKETS_S = (-5.0, -1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Buckets of a listener's slack; at or below 0 playback ran dry. As values may be negative there is no `_sum`."""


class GatewayMetrics:
    """One gateway's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        spoken = "Streams spoken now: requests, or turns of texts still being written"
        self.streams = Gauge(f"{PREFIX}_streams", spoken, registry=self.registry)
        self.requests = self._counter("requests_total", "Streams that have ended", "dialect", "outcome")
        self.failures = self._counter("failures_total", "Streams that ended in an error, by its code", "cause")
        told = "From the request for a stream to its first samples"
        self.first_audio = self._histogram("time_to_first_audio_seconds", told, FIRST_AUDIO_BUCKETS_S)
        told = "How long before its listener would have run dry a chunk came; negative: after"
        self.slack = self._histogram("chunk_slack_seconds", told, SLACK_BUCKETS_S)
        self.underrun = self._counter("underrun_seconds_total", "Silence that listeners heard between chunks")
        self.audio = self._counter("audio_seconds_total", "Audio delivered")
        self.speech_tokens = self._counter("speech_tokens_total", "Speech tokens received from the LLM (25 a second)")
        self.guarded = self._counter(
            "guarded_segments_total", "Segments whose speech left the text", "trouble", "outcome"
        )
        self.wasted_tokens = self._counter(
            "wasted_speech_tokens_total", "Speech tokens whose audio was never delivered: cancelled or failed"
        )
        self.cancelled = self._counter("cancelled_total", "Streams whose callers left before the end")
        self.admission_refused = self._counter("admission_refused_total", "Streams refused for now (429), all causes")
        ProcessCollector(registry=self.registry)
        for trouble in Trouble:
            for became in GuardOutcome:
                self.guarded.labels(trouble.value, became.value)
        for dialect in DIALECTS:
            for outcome in Outcome:
                self.requests.labels(dialect, outcome.value)
        for code in known_codes():
            self.failures.labels(code)

    def count_end(self, dialect: str, outcome: Outcome, cause: str | None) -> None:
        """Count a stream that has ended or was refused; `cause` is the code of its error, if there was one."""
        self.requests.labels(dialect, outcome.value).inc()
        if cause is not None:
            self.failures.labels(cause).inc()
        if outcome is Outcome.REFUSED:
            self.admission_refused.inc()
        if outcome is Outcome.CANCELLED:
            self.cancelled.inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, registry=self.registry, buckets=buckets)


Snapshot = Callable[[], Sequence[Replica]]
"""Returns the replicas of one router; called from any thread, so it must only read."""
_READINGS: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[Replica], float | None]], ...]
_READINGS = (
    (GaugeMetricFamily, "replica_open_streams", "Streams of this gateway there", lambda r: r.open_streams),
    (GaugeMetricFamily, "replica_free_slots", "Slots left there", lambda r: r.free_slots),
    (
        GaugeMetricFamily,
        "replica_step_seconds",
        "A recent step of token2wav there, or time between two tokens of an LLM",
        lambda r: r.step_s,
    ),
    (CounterMetricFamily, "replica_failures_total", "What it failed", lambda r: r.failures_total),
    (CounterMetricFamily, "failovers_total", "Streams that went on elsewhere", lambda r: r.failovers_total),
)


class ReplicaMetrics(Collector):
    """Metrics of the replicas behind the gateway, read when a scraper asks; a replica that is gone is in none."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        replicas = [replica for snapshot in self._snapshots for replica in snapshot()]
        states = GaugeMetricFamily(
            f"{PREFIX}_replicas", "Replicas by what they are good for", labels=("service", "state")
        )
        for service in sorted({replica.service for replica in replicas}):
            for state in ReplicaState:
                count = sum((each.service, each.state) == (service, state) for each in replicas)
                states.add_metric((service, state.value), count)
        yield states
        for make_family, name, text, read in _READINGS:
            family = make_family(f"{PREFIX}_{name}", text, labels=("service", "replica"))
            for replica in replicas:
                if (value := read(replica)) is not None:
                    family.add_metric((replica.service, replica.address), value)
            yield family
