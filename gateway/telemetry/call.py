"""The call that is being served, and which dialect it speaks: known from the door inwards for as long as it lasts, also
in tasks started there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from servicekit.tracing import NULL_SPAN, Span


@dataclass
class Call:
    """One HTTP request, one socket, one gRPC call or one Wyoming connection that may ask for speech."""

    dialect: str
    span: Span = field(default_factory=lambda: NULL_SPAN)
    """Trace span of the whole call."""
    is_told: bool = False
    """Whether the pipeline has reported speech or a refusal for the call."""


_call: ContextVar[Call | None] = ContextVar("call", default=None)


current_call: Callable[[], Call | None] = _call.get
"""Returns the call on whose behalf this runs; None: the gateway's own warm-up."""
serve_call: Callable[[Call], object] = _call.set
"""Has the rest of the running task, and tasks that it starts, run on behalf of a call."""


def note_trace(record: logging.LogRecord) -> bool:
    """Give a log record the `trace_id` of the call under way, if it has one; drop none. For handlers."""
    call = current_call()
    if call is not None and call.span.trace_id is not None and not hasattr(record, "trace_id"):
        record.trace_id = call.span.trace_id
    return True


OPENAI, SPEECH_WS, ELEVENLABS = "openai", "websocket", "elevenlabs"
RIVA, TTS, WYOMING = "riva", "grpc", "wyoming"
DIALECTS = (OPENAI, SPEECH_WS, ELEVENLABS, RIVA, TTS, WYOMING)
