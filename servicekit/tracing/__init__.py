"""Spans of one trace across all services; `open_tracer` makes a process's tracer."""

from servicekit.tracing.open import (
    ENDPOINT_VARIABLE,
    TracingUnavailableError,
    endpoint_of,
    open_tracer,
    trace_headers,
    working_under,
)
from servicekit.tracing.span import NULL_SPAN, NULL_TRACER, TRACEPARENT, Attribute, Span, SpanKind, Tracer

__all__ = [
    "ENDPOINT_VARIABLE",
    "NULL_SPAN",
    "NULL_TRACER",
    "TRACEPARENT",
    "Attribute",
    "Span",
    "SpanKind",
    "Tracer",
    "TracingUnavailableError",
    "endpoint_of",
    "open_tracer",
    "trace_headers",
    "working_under",
]
