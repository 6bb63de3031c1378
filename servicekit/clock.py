"""The one place where time is read. Everything that needs time takes a `Clock` from its caller."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds; tests and simulators inject their own."""

    def now(self) -> float:
        """Return monotonic seconds; only differences mean anything."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.monotonic)
