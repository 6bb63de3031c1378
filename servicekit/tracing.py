"""Spans of one trace across all services (OpenTelemetry), and nothing at all where tracing is off.

`open_tracer` makes a tracer. A span's place in the trace travels as a W3C `traceparent`,
00-<trace id>-<span id>-<flags>: requests of this process's clients carry that of the span that they work under, and the
services' spans hang below it. OpenTelemetry is imported where spans are recorded, and only there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from servicekit.extras import install_command
from servicekit.logs import PlainError

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor

TRACEPARENT = "traceparent"
"""Name of the HTTP header, of the gRPC metadata and of the Triton request parameter."""
ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Environment variable of the base URL of an OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; OpenTelemetry's own
name."""
_TRACES_PATH = "/v1/traces"
_SCOPE = "cosydit"
_headers: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default=MappingProxyType({}))
trace_headers: Callable[[], Mapping[str, str]] = _headers.get
"""Returns what a request carries; empty where nothing is traced."""

Attribute = str | int | float | bool


class SpanKind(Enum):
    """Which side of a call a span is on."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class TracingUnavailableError(PlainError):
    """Tracing is asked for and can't be had; the message says what to install."""


class Span:
    """A stretch of work; `end` is called once."""

    def __init__(self, tracer: trace.Tracer | None = None, recorded: trace.Span | None = None) -> None:
        """Record into OpenTelemetry's span; without one, nothing is recorded."""
        self._tracer = tracer
        self._recorded = recorded

    @property
    def traceparent(self) -> str | None:
        """What makes another service's span a child of this one; None when nothing is recorded."""
        if self._recorded is None:
            return None
        place = self._recorded.get_span_context()
        return f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"

    @property
    def trace_id(self) -> str | None:
        """Return 32 hexadecimal digits; None when nothing is recorded."""
        return None if self._recorded is None else f"{self._recorded.get_span_context().trace_id:032x}"

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None) -> Span:
        """Begin a part of this work, now or at a time since 1970."""
        if self._tracer is None or self._recorded is None:
            return NULL_SPAN
        from opentelemetry import trace
        from opentelemetry.context import Context

        return _begun(self._tracer, name, trace.set_span_in_context(self._recorded, Context()), kind, start_ns)

    def note(self, **attributes: Attribute) -> None:
        """Keep facts; two underscores in a name stand for a dot."""
        if self._recorded is not None:
            self._recorded.set_attributes({name.replace("__", "."): value for name, value in attributes.items()})

    def event(self, name: str) -> None:
        """Mark a moment."""
        if self._recorded is not None:
            self._recorded.add_event(name)

    def end(self, error: BaseException | None = None, end_ns: int | None = None) -> None:
        """End it, now or at a time since 1970; an error marks it as failed."""
        if self._recorded is None:
            return
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._recorded.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._recorded.end(end_time=end_ns)


class Tracer:
    """Begins the spans that have no parent in this process."""

    def __init__(self, service: str = "", processor: SpanProcessor | None = None) -> None:
        """Hand finished spans of a service to a processor; without one, nothing is recorded.

        Raises:
            ImportError: spans are to be recorded, and OpenTelemetry is not installed.
        """
        self._tracer: trace.Tracer | None = None
        if processor is None:
            return
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider

        # A provider of its own: OpenTelemetry's global one is left alone.
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_SCOPE)

    def begin(self, name: str, traceparent: str | None, kind: SpanKind = SpanKind.SERVER) -> Span:
        """Begin a span under the caller's, or a new trace; a malformed `traceparent` begins a new one."""
        if self._tracer is None:
            return NULL_SPAN
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {TRACEPARENT: traceparent} if traceparent else {}
        parent = TraceContextTextMapPropagator().extract(carrier, context=Context())
        return _begun(self._tracer, name, parent, kind)

    def close(self) -> None:
        """Send what is left."""
        if self._tracer is not None:
            self._provider.shutdown()


NULL_SPAN = Span()
NULL_TRACER = Tracer()


def _begun(tracer: trace.Tracer, name: str, parent: Context, kind: SpanKind, start_ns: int | None = None) -> Span:
    from opentelemetry import trace

    return Span(tracer, tracer.start_span(name, context=parent, kind=trace.SpanKind[kind.name], start_time=start_ns))


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
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + _TRACES_PATH)
        return Tracer(service, BatchSpanProcessor(exporter))
    except ImportError as error:
        got = f"tracing to {endpoint} needs OpenTelemetry, which is not installed ({error})"
        raise TracingUnavailableError(f"{got}; install with: {install_command('tracing')}") from error


@contextmanager
def working_under(traceparent: str | None) -> Iterator[None]:
    """Have requests that are sent inside, and in tasks started inside, carry a W3C traceparent."""
    token = _headers.set({} if traceparent is None else {TRACEPARENT: traceparent})
    try:
        yield
    finally:
        _headers.reset(token)
