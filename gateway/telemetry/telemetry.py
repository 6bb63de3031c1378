"""One gateway's telemetry: its settings, and what the gateway's parts are given so that they can tell what they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.errors import ConfigError
from gateway.telemetry.call import Call, serve_call
from gateway.telemetry.call_observer import CallObserver
from gateway.telemetry.metrics import GatewayMetrics
from servicekit.clock import Clock
from servicekit.logs import LogFormat
from servicekit.tracing import NULL_SPAN, NULL_TRACER, Tracer, TracingUnavailableError, open_tracer


@dataclass(frozen=True)
class TelemetrySettings:
    """How the gateway is watched."""

    metrics_port: int | None = None
    """Port for GET /metrics and GET /livez, on the same host, without keys or TLS. None: the HTTP door has /metrics,
    unless callers need API keys: those identify callers, and a metrics scraper has none. There is no /livez then."""
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver; None: no traces."""
    log_format: LogFormat = LogFormat.TEXT

    def __post_init__(self) -> None:
        if self.otlp_endpoint is not None:
            parts = urlsplit(self.otlp_endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                got = f"got OTLP endpoint {self.otlp_endpoint!r}"
                raise ConfigError(f"{got}, expected the base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318")

    def is_at_the_door(self, has_keys: bool) -> bool:
        """Whether the HTTP door answers GET /metrics."""
        return self.metrics_port is None and not has_keys


_SERVICE = "cosydit-gateway"


class Telemetry:
    """Metrics always, traces where they are on."""

    def __init__(self, clock: Clock, tracer: Tracer = NULL_TRACER) -> None:
        """Begin to count; the owner closes the tracer."""
        self.metrics = GatewayMetrics()
        self.observer = CallObserver(self.metrics, clock)
        """Receives the pipeline's events."""
        self.tracer = tracer

    @contextmanager
    def serving(self, dialect: str, name: str, traceparent: str | None) -> Iterator[Call]:
        """Have what the running task does until the context is left be done on behalf of a call."""
        call = Call(dialect, NULL_SPAN if self.tracer is NULL_TRACER else self.tracer.begin(name, traceparent))
        serve_call(call)
        try:
            yield call
        except BaseException as error:
            call.span.end(error)
            raise
        call.span.end()


def open_telemetry(settings: TelemetrySettings, clock: Clock) -> Telemetry:
    """Make a gateway's telemetry; its owner closes the tracer.

    Raises:
        ConfigError: traces are asked for and OpenTelemetry is not installed.
    """
    try:
        return Telemetry(clock, open_tracer(_SERVICE, settings.otlp_endpoint))
    except TracingUnavailableError as error:
        raise ConfigError(str(error)) from error
