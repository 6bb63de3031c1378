"""How a stream ended, as one of few words."""

from __future__ import annotations

import asyncio
from enum import Enum

from gateway.errors import HTTP_SERVER_ERROR, wire_status

_HTTP_TOO_MANY = 429
_LEFT = (asyncio.CancelledError, GeneratorExit)


class Outcome(str, Enum):
    """Value of the label `outcome`."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The caller left."""
    INVALID = "invalid"
    """The caller's mistake (4xx)."""
    REFUSED = "refused"
    """Not now (429): a limit, or no room."""
    FAILED = "failed"
    """Our fault, or a service's (5xx)."""


def outcome_of(error: BaseException | None) -> Outcome:
    """Say what an end was."""
    if error is None:
        return Outcome.COMPLETED
    if isinstance(error, _LEFT):
        return Outcome.CANCELLED
    return outcome_of_status(wire_status(error).http)


def outcome_of_status(status: int) -> Outcome:
    """Say what an HTTP status that is an error means."""
    if status == _HTTP_TOO_MANY:
        return Outcome.REFUSED
    return Outcome.FAILED if status >= HTTP_SERVER_ERROR else Outcome.INVALID
