"""Spans of one trace across all services (OpenTelemetry), and nothing at all where tracing is off.

`Span` and `Tracer` do nothing; those of `otel_tracing` record. `open_tracer` makes a tracer. A span's place in
the trace travels as a W3C `traceparent`, 00-<trace id>-<span id>-<flags>: requests of this process's clients carry that
of the span that they work under, and the services' spans hang below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import MappingProxyType

from servicekit.extras import install_command

TRACEPARENT = "traceparent"
"""Name of the HTTP header, of the gRPC metadata and of the Triton request parameter."""

Attribute = str | int | float | bool


class SpanKind(Enum):
    """Which side of a call a span is on."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span:
    """A stretch of work; this one is not recorded. `end` is called once."""

    @property
    def traceparent(self) -> str | None:
        """What makes another service's span a child of this one; None when nothing is recorded."""
        return None

    @property
    def trace_id(self) -> str | None:
        """Return 32 hexadecimal digits; None when nothing is recorded."""
        return None

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None) -> Span:
        """Begin a part of this work, now or at a time since 1970."""
        return NULL_SPAN

    def note(self, **attributes: Attribute) -> None:
        """Keep facts; two underscores in a name stand for a dot."""

    def event(self, name: str) -> None:
        """Mark a moment."""

    def end(self, error: BaseException | None = None, end_ns: int | None = None) -> None:
        """End it, now or at a time since 1970; an error marks it as failed."""


class Tracer:
    """Begins the spans that have no parent in this process; these are not recorded."""

    def begin(self, name: str, traceparent: str | None, kind: SpanKind = SpanKind.SERVER) -> Span:
        """Begin a span under the caller's, or a new trace; a malformed `traceparent` begins a new one."""
        return NULL_SPAN

    def close(self) -> None:
        """Send what is left."""


NULL_SPAN = Span()
NULL_TRACER = Tracer()

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Environment variable of the base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; OpenTelemetry's own
name."""
_headers: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default=MappingProxyType({}))
trace_headers: Callable[[], Mapping[str, str]] = _headers.get
"""Returns what a request carries; empty where nothing is traced."""


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
        from servicekit.otel_tracing import OtelTracer
    except ImportError as error:
        got = f"tracing to {endpoint} needs OpenTelemetry, which is not installed ({error})"
        raise TracingUnavailableError(f"{got}; install with: {install_command('tracing')}") from error
    return OtelTracer.to(service, endpoint)


@contextmanager
def working_under(traceparent: str | None) -> Iterator[None]:
    """Have requests that are sent inside, and in tasks started inside, carry a W3C traceparent."""
    token = _headers.set({} if traceparent is None else {TRACEPARENT: traceparent})
    try:
        yield
    finally:
        _headers.reset(token)
