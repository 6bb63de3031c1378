"""The call that is being served, and which dialect it speaks: known from the door inwards for as long as it lasts, also
in tasks started there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from gateway.dialects.grpc import riva_grpc, tts_grpc
from gateway.dialects.openai import http as openai_http
from gateway.dialects.speech_ws import socket as speech_ws
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
    """Run the block on behalf of a call."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


OPENAI, SPEECH_WS, ELEVENLABS = "openai", "websocket", "elevenlabs"
RIVA, TTS, WYOMING = "riva", "grpc", "wyoming"
DIALECTS = (OPENAI, SPEECH_WS, ELEVENLABS, RIVA, TTS, WYOMING)
_ELEVENLABS_PREFIX = "/v1/text-to-speech/"
_EXACT = {openai_http.PATH: OPENAI, speech_ws.PATH: SPEECH_WS}
_GRPC = {f"/{riva_grpc.SERVICE_NAME}/": RIVA, f"/{tts_grpc.SERVICE_NAME}/": TTS}


def dialect_of_path(path: str) -> str | None:
    """Return the dialect of an HTTP path or socket; None if no speech is asked for there."""
    return ELEVENLABS if path.startswith(_ELEVENLABS_PREFIX) else _EXACT.get(path)


def dialect_of_method(method: str) -> str | None:
    """Return the dialect of a full gRPC method name; None if it is not of a speech service."""
    return next((dialect for prefix, dialect in _GRPC.items() if method.startswith(prefix)), None)
