"""Spans of one trace across all services (OpenTelemetry), and nothing at all where tracing is off.

`Span` and `Tracer` do nothing; those of `otel` record. A span's place in the trace travels as a W3C
`traceparent`, 00-<trace id>-<span id>-<flags>.
"""

from __future__ import annotations

from enum import Enum

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
