"""The gateway's Prometheus metrics, and the observer that writes them from what the pipeline and the doors tell.

Slack is how long before its listener would have run dry a chunk came:

    first audio ├──── audio so far ────┤ runs dry
                          next chunk ▲ ├ ─ ─ ─ slack above 0
                                       ├ ─ ─ ▲ next chunk: slack below 0, an underrun

The listener plays from the first audio on and, after an underrun, from the chunk that ended it. A caller who asks for
the next chunk only when its audio is over, as one who reads slowly does, waits for us from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.core import AudioChunk
from gateway.errors import HTTP_SERVER_ERROR, GatewayError, known_codes, wire_status
from gateway.routing.replica import Replica, ReplicaState
from gateway.speech.guard import Trouble
from gateway.speech.observer import Observer, StreamObserver
from gateway.speech.request import GuardNote, GuardOutcome
from gateway.telemetry.call import DIALECTS, Call, current_call
from servicekit.clock import Clock
from token2wav_service.contract import SAMPLES_PER_TOKEN

_HTTP_TOO_MANY = 429
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
    if status == _HTTP_TOO_MANY:
        return Outcome.REFUSED
    return Outcome.FAILED if status >= HTTP_SERVER_ERROR else Outcome.INVALID


PREFIX = "cosydit_gateway"
FIRST_AUDIO_BUCKETS_S = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
SLACK_BUCKETS_S = (-5.0, -1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Buckets of a listener's slack; at or below 0 playback ran dry. As values may be negative there is no `_sum`."""


class GatewayMetrics:
    """One gateway's metrics in a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register everything, at 0."""
        self.registry = registry or CollectorRegistry()
        self.streams = self._gauge("streams", "Streams spoken now: requests, or turns of texts still being written")
        self.requests = self._counter("requests_total", "Streams that have ended", "dialect", "outcome")
        self.failures = self._counter("failures_total", "Streams that ended in an error, by its code", "cause")
        self.first_audio = Histogram(
            f"{PREFIX}_time_to_first_audio_seconds",
            "From the request for a stream to its first samples",
            registry=self.registry,
            buckets=FIRST_AUDIO_BUCKETS_S,
        )
        self.slack = Histogram(
            f"{PREFIX}_chunk_slack_seconds",
            "How long before its listener would have run dry a chunk came; negative: after",
            registry=self.registry,
            buckets=SLACK_BUCKETS_S,
        )
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

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self.registry)


class MetricsObserver(Observer):
    """Counts streams on behalf of calls; the gateway's own warm-up is not counted."""

    def __init__(self, metrics: GatewayMetrics, clock: Clock) -> None:
        """Write to `metrics`; `clock` times the streams."""
        self._metrics = metrics
        self._clock = clock

    def begin(self, request_id: str) -> StreamObserver:
        """See `Observer.begin`."""
        call = current_call()
        if call is None:
            return StreamObserver()
        call.is_told = True
        return _MeteredStream(self._metrics, self._clock, call.dialect)

    def refused(self, error: GatewayError) -> None:
        """See `Observer.refused`."""
        call = current_call()
        if call is not None:
            call.is_told = True
            _count_end(self._metrics, call.dialect, outcome_of(error), wire_status(error).code)

    def refused_at_the_door(self, call: Call, http_status: int) -> None:
        """Note a call that was answered with an error before the pipeline heard of it."""
        if not call.is_told:
            _count_end(self._metrics, call.dialect, outcome_of_status(http_status), f"http_{http_status}")


class _MeteredStream(StreamObserver):
    def __init__(self, metrics: GatewayMetrics, clock: Clock, dialect: str) -> None:
        self._metrics = metrics
        self._clock = clock
        self._dialect = dialect
        self._dry_s: float | None = None
        """When the listener has played all audio so far; None before the first."""
        self._began_s = self._asked_s = clock.now()
        self._tokens = self._samples = 0
        metrics.streams.inc()

    def received(self, tokens: int) -> None:
        self._tokens += tokens
        self._metrics.speech_tokens.inc(tokens)

    def guarded(self, note: GuardNote) -> None:
        self._metrics.guarded.labels(note.trouble, note.outcome.value).inc()

    def heard(self, audio: AudioChunk) -> None:
        if not len(audio.samples):
            return
        now_s = self._clock.now()
        if self._dry_s is None:
            self._metrics.first_audio.observe(now_s - self._began_s)
            self._dry_s = now_s
        else:
            slack_s = max(self._dry_s, self._asked_s) - now_s
            self._metrics.slack.observe(slack_s)
            self._metrics.underrun.inc(max(-slack_s, 0.0))
        self._dry_s = max(self._dry_s, now_s) + audio.duration_s
        self._samples += len(audio.samples)
        self._metrics.audio.inc(audio.duration_s)

    def asked(self) -> None:
        self._asked_s = self._clock.now()

    def ended(self, error: BaseException | None) -> None:
        outcome = outcome_of(error)
        self._metrics.streams.dec()
        if outcome is not Outcome.COMPLETED:
            self._metrics.wasted_tokens.inc(max(self._tokens - self._samples // SAMPLES_PER_TOKEN, 0))
        cause = None if error is None or outcome is Outcome.CANCELLED else wire_status(error).code
        _count_end(self._metrics, self._dialect, outcome, cause)


def _count_end(metrics: GatewayMetrics, dialect: str, outcome: Outcome, cause: str | None) -> None:
    metrics.requests.labels(dialect, outcome.value).inc()
    if cause is not None:
        metrics.failures.labels(cause).inc()
    if outcome is Outcome.REFUSED:
        metrics.admission_refused.inc()
    if outcome is Outcome.CANCELLED:
        metrics.cancelled.inc()


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
        """Keep how the replicas of each service are read; a registry takes it once."""
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
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
