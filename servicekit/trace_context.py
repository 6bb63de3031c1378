"""Which span the services' clients work under: their requests carry it, and the services' spans hang below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from servicekit.tracing import TRACEPARENT

_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


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
