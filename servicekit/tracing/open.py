"""Opens a process's tracer: one that records where there is somewhere to send spans, else one that does nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping

from servicekit.extras import install_command
from servicekit.tracing.span import NULL_TRACER, Tracer

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Environment: base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; OpenTelemetry's own name."""


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
