"""Keeps the caller of the present call, for logs and for everything that counts by caller."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

NOBODY = "-"
"""In logs, and for peers without an address."""

DEFAULT_UNSPOKEN_CHARACTERS = 200_000
"""Ten streams of as much as one may have, and three hours of speech."""


@dataclass(frozen=True)
class CallerLimits:
    """What one caller may have; None is unlimited."""

    streams: int | None = None
    """Spoken at once."""
    audio_s_per_hour: float | None = None
    """Of audio, at normal speed, in any 60 minutes."""
    audio_s_per_day: float | None = None
    """In any 24 hours."""
    unspoken_characters: int | None = DEFAULT_UNSPOKEN_CHARACTERS
    """Of texts still being written: accepted on all sockets and calls together and not spoken yet."""


@dataclass(frozen=True)
class Caller:
    """A caller's name, and its limits."""

    name: str
    """Of its API key; without keys its address."""
    limits: CallerLimits = field(default_factory=CallerLimits)
    has_key: bool = False


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Return on whose behalf this runs; None: the gateway's own."""
    return _caller.get()


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Do what is inside on behalf of a caller, tasks that are started there included."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def caller_of(connection: HTTPConnection) -> str:
    """Return the caller's name, for code that counts by name; `voices_http.routes` takes it."""
    caller = current_caller()
    return caller.name if caller is not None else address_of(connection.scope.get("client"))


def address_of(client: tuple[str, int] | None) -> str:
    """Return the address of an ASGI scope's client."""
    return client[0] if client is not None else NOBODY


class CallerFilter(logging.Filter):
    """Adds `caller` to each record and drops none. For handlers, so that it sees the records of all loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        caller = current_caller()
        record.caller = caller.name if caller is not None else NOBODY
        return True
