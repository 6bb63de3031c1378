"""One gateway's telemetry: what its parts are given so that they can tell of what they do."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import ConfigError
from gateway.speech.observer import Observer, Observers
from gateway.telemetry.call import Call
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.metrics_observer import MetricsObserver
from gateway.telemetry.settings import TelemetrySettings
from gateway.telemetry.tracing_observer import TracingObserver
from servicekit.clock import Clock
from servicekit.tracing import NULL_TRACER, Tracer, TracingUnavailableError, open_tracer

_SERVICE = "cosydit-gateway"


@dataclass(frozen=True)
class Telemetry:
    """Metrics always, traces where they are on."""

    metrics: GatewayMetrics
    observer: Observer
    """For the pipeline."""
    counting: MetricsObserver
    tracer: Tracer = NULL_TRACER

    def refused_at_the_door(self, call: Call, http_status: int) -> None:
        """Note a call that was answered with an error; nothing is counted twice."""
        self.counting.refused_at_the_door(call, http_status)


def open_telemetry(settings: TelemetrySettings, clock: Clock) -> Telemetry:
    """Make a gateway's telemetry; its owner closes the tracer.

    Raises:
        ConfigError: traces are asked for and OpenTelemetry is not installed.
    """
    try:
        return make_telemetry(clock, open_tracer(_SERVICE, settings.otlp_endpoint))
    except TracingUnavailableError as error:
        raise ConfigError(str(error)) from error


def make_telemetry(clock: Clock, tracer: Tracer = NULL_TRACER) -> Telemetry:
    """Make what a gateway needs; its owner closes the tracer."""
    metrics = GatewayMetrics()
    counting = MetricsObserver(metrics, clock)
    observer = counting if tracer is NULL_TRACER else Observers(counting, TracingObserver())
    return Telemetry(metrics, observer, counting, tracer)
