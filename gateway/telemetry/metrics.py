"""The gateway's Prometheus metrics: names, kinds and buckets. Knows nothing of when they change."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from gateway.errors import known_codes
from gateway.telemetry.dialects import DIALECTS
from gateway.telemetry.outcome import Outcome

PREFIX = "cosydit_gateway"
FIRST_AUDIO_BUCKETS_S = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
SLACK_BUCKETS_S = (-5.0, -1.0, -0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""At or below 0 the listener ran dry. As values may be negative there is no `_sum`."""


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
        self.wasted_tokens = self._counter(
            "wasted_speech_tokens_total", "Speech tokens whose audio was never delivered: cancelled or failed"
        )
        self.cancelled = self._counter("cancelled_total", "Streams whose callers left before the end")
        self.admission_refused = self._counter("admission_refused_total", "Streams refused for now (429), all causes")
        ProcessCollector(registry=self.registry)
        for dialect in DIALECTS:
            for outcome in Outcome:
                self.requests.labels(dialect, outcome.value)
        for code in known_codes():
            self.failures.labels(code)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self.registry)
