"""Turns what the pipeline and the doors tell into metrics."""

from __future__ import annotations

from gateway.core import AudioChunk
from gateway.errors import GatewayError, wire_status
from gateway.speech.observer import Observer, StreamObserver
from gateway.telemetry.call import Call, current_call
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.outcome import Outcome, outcome_of, outcome_of_status
from gateway.telemetry.playback import Playback, underrun_s
from servicekit.clock import Clock
from token2wav_service.contract import SAMPLES_PER_TOKEN


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
        self._playback = Playback()
        self._began_s = self._asked_s = clock.now()
        self._tokens = self._samples = 0
        metrics.streams.inc()

    def received(self, tokens: int) -> None:
        self._tokens += tokens
        self._metrics.speech_tokens.inc(tokens)

    def heard(self, audio: AudioChunk) -> None:
        now_s = self._clock.now()
        if not self._samples and len(audio.samples):
            self._metrics.first_audio.observe(now_s - self._began_s)
        slack_s = self._playback.deliver(self._asked_s, now_s, audio.duration_s)
        if slack_s is not None:
            self._metrics.slack.observe(slack_s)
            self._metrics.underrun.inc(underrun_s(slack_s))
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
