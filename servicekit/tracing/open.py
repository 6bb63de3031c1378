"""Opens a process's tracer: one that records where there is somewhere to send spans, else one that does nothing.

Below, which span this process's clients work under: their requests carry it, and the services' spans hang below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from servicekit.extras import install_command
from servicekit.tracing.span import NULL_TRACER, TRACEPARENT, Tracer

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Environment variable of the base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; OpenTelemetry's own
name."""
_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


class TracingUnavailableError(Exception):
    """Tracing is asked for and can't be had; the message says what to install."""


def endpoint_of(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return where spans go according to the environment; None: nowhere."""
    return environment.get(ENDPOINT_VARIABLE) or None


def open_tracer(service: str, endpoint: str | None) -> Tracer:
    """Make a process's tracer.

    Args:
        service: `service.name` of its spans.
        endpoint: base URL of an OTLP/HTTP receiver; None: tracing is off. Sampling and other limits come from
            OpenTelemetry's own variables, e.g. OTEL_TRACES_SAMPLER.

    Raises:
        TracingUnavailableError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return NULL_TRACER
    try:
        from servicekit.tracing.otel import OtelTracer
    except ImportError as error:
        got = f"tracing to {endpoint} needs OpenTelemetry, which is not installed ({error})"
        raise TracingUnavailableError(f"{got}; install with: {install_command('tracing')}") from error
    return OtelTracer.to(service, endpoint)


def trace_headers() -> dict[str, str]:
    """Return what a request carries; empty where nothing is traced."""
    traceparent = _traceparent.get()
    return {TRACEPARENT: traceparent} if traceparent is not None else {}


@contextmanager
def working_under(traceparent: str | None) -> Iterator[None]:
    """Have requests that are sent inside, and in tasks started inside, carry a W3C traceparent."""
    token = _traceparent.set(traceparent)
    try:
        yield
    finally:
        _traceparent.reset(token)
