"""When a refused caller may try again, as each wire says it."""

from __future__ import annotations

import math

from gateway.errors import LimitError, OverloadedError, UnauthenticatedError, VoiceRateError

LONGEST_RETRY_S = 60.0
"""Clients that repeat on their own are told not to where it would take longer."""
GRPC_PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata that gRPC's own retries obey; below 0: don't."""
RETRY_AFTER_KEY = "retry-after"
_NO_RETRY_MS = -1
_MS_PER_S = 1000


def retry_after_s(error: BaseException) -> float | None:
    """Return when the same request may succeed, if that is known."""
    return error.retry_after_s if isinstance(error, (LimitError, OverloadedError, VoiceRateError)) else None


def error_headers(error: BaseException) -> dict[str, str]:
    """Return what an HTTP answer to the error says in its headers, for clients that repeat or ask on their own."""
    if isinstance(error, UnauthenticatedError):
        return {"www-authenticate": "Bearer"}
    if (seconds := retry_after_s(error)) is None:
        return {}
    is_worthwhile = seconds <= LONGEST_RETRY_S
    return {RETRY_AFTER_KEY: str(math.ceil(seconds)), "x-should-retry": "true" if is_worthwhile else "false"}


def error_metadata(error: BaseException) -> list[tuple[str, str]]:
    """Return the same for a gRPC call's trailing metadata."""
    if (seconds := retry_after_s(error)) is None:
        return []
    pushback_ms = math.ceil(seconds * _MS_PER_S) if seconds <= LONGEST_RETRY_S else _NO_RETRY_MS
    return [(RETRY_AFTER_KEY, str(math.ceil(seconds))), (GRPC_PUSHBACK_KEY, str(pushback_ms))]
