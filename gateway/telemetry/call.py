"""The call that is being served: known from the door inwards for as long as it lasts, tasks started there included."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from servicekit.tracing import NULL_SPAN, Span


@dataclass
class Call:
    """One HTTP request, one socket or one gRPC call that may ask for speech."""

    dialect: str
    span: Span = field(default_factory=lambda: NULL_SPAN)
    """Of the whole call."""
    is_told: bool = False
    """Whether the pipeline has told of speech, or of a refusal, on behalf of the call."""


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def current_call() -> Call | None:
    """Return the call on whose behalf this runs; None: the gateway's own warm-up."""
    return _call.get()


class CallFilter(logging.Filter):
    """Gives records the `trace_id` of the call under way, if it has one; lets all pass. For handlers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        call = current_call()
        if call is not None and call.span.trace_id is not None and not hasattr(record, "trace_id"):
            record.trace_id = call.span.trace_id
        return True


@contextmanager
def serving(call: Call) -> Iterator[None]:
    """Do what is inside on behalf of a call."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)
