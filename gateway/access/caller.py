"""Keeps the caller of the present call, for logs and for everything that counts by caller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

NOBODY = "-"
"""Caller's name in logs if the peer has no address."""

DEFAULT_UNSPOKEN_CHARACTERS = 200_000
"""Default bound of text not spoken yet: ten streams of as much as one may have, three hours of speech."""


@dataclass(frozen=True)
class CallerLimits:
    """What one caller may have; None is unlimited."""

    streams: int | None = None
    """Most streams at once; None: no bound."""
    audio_s_per_hour: float | None = None
    """Seconds of audio, at normal speed, in any 60 minutes; None: no bound."""
    audio_s_per_day: float | None = None
    """Seconds of audio, at normal speed, in any 24 hours; None: no bound."""
    unspoken_characters: int | None = DEFAULT_UNSPOKEN_CHARACTERS
    """Most characters accepted and not spoken yet, on all sockets and calls together."""


@dataclass(frozen=True)
class Caller:
    """A caller's name, and its limits."""

    name: str
    """Name of the caller's API key; without keys its address."""
    limits: CallerLimits = field(default_factory=CallerLimits)
    has_key: bool = False


OURSELVES = Caller("(gateway)")
"""The caller of the gateway's own warm-up. No API key can have this name."""
_caller: ContextVar[Caller] = ContextVar("caller", default=OURSELVES)
current_caller: Callable[[], Caller] = _caller.get
"""Returns on whose behalf this runs."""
call_for: Callable[[Caller], object] = _caller.set
"""Has the rest of the running task, and tasks that it starts, run on behalf of a caller."""


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Do what is inside on behalf of a caller, tasks that are started there included."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def note_caller(record: logging.LogRecord) -> bool:
    """Add `caller` to a log record and drop none. For handlers, so that it sees the records of all loggers."""
    caller = current_caller()
    record.caller = caller.name if caller is not OURSELVES else NOBODY
    return True
