"""The state of one replica, from its latest failures and answers. Pure: time comes from a clock, answers from outside.

unknown ──probe──► ready ◄──probe, after a pause──── ejected
                    │  └──failures in a row────────────▲
                    ▼                                  │
                 draining ─────failures in a row───────┘
"""

from __future__ import annotations

from enum import Enum

from gateway.routing.settings import RoutingSettings
from servicekit.clock import Clock


class FailureKind(Enum):
    """What kind of failure a probe or a stream met."""

    WRONG = "wrong"
    """The replica answered wrongly, or ended the answer early."""
    SLOW = "slow"
    """The replica did not answer in time."""
    GONE = "gone"
    """No process answers there; a replica that comes back has lost its streams and voices."""


class ReplicaState(str, Enum):
    """Whether a replica may get streams now."""

    UNKNOWN = "unknown"
    """The replica was found, but has not answered a probe yet."""
    READY = "ready"
    DRAINING = "draining"
    """The replica finishes its streams and gets no new ones: it says so, or discovery no longer lists it."""
    EJECTED = "ejected"
    """The replica failed too often in a row; it is tried again after a while."""


class Health:
    """Counts failures in a row, and lets a replica back in after a pause that doubles each time."""

    def __init__(self, settings: RoutingSettings, clock: Clock) -> None:
        """Begin knowing nothing."""
        self._settings = settings
        self._clock = clock
        self._has_answered = False
        self.is_draining = False
        """Whether it said itself that it takes no more streams."""
        self.is_listed = True
        """Whether discovery lists the replica as one that may get streams."""
        self._failures_in_row = 0
        self._ejections_in_row = 0
        self._ejected_until_s: float | None = None
        self._progress_s = float("-inf")
        self.failures_total = 0
        """Streams and probes that failed there."""
        self.ejections_total = 0
        self.last_failure = ""
        """Text of the latest failure, or of the one that ejected it; empty if there was none."""

    @property
    def state(self) -> ReplicaState:
        """Whether it may get streams now."""
        if self._ejected_until_s is not None:
            return ReplicaState.EJECTED
        if self.is_draining or not self.is_listed:
            return ReplicaState.DRAINING
        return ReplicaState.READY if self._has_answered else ReplicaState.UNKNOWN

    def answered_probe(self, is_draining: bool = False) -> None:
        """Note that it answered a probe; an ejected one is let in if its pause is over."""
        if self._ejected_until_s is not None and self._clock.now() < self._ejected_until_s:
            return
        self._ejected_until_s = None
        self._has_answered = True
        self.is_draining = is_draining
        self._failures_in_row = 0

    def succeeded(self) -> None:
        """Note that it did some of its work well: audio or tokens came."""
        self._progress_s = self._clock.now()
        self._failures_in_row = 0
        self._ejections_in_row = 0

    def progressed_within(self, window_s: float) -> bool:
        """Tell whether it did some of its work in the last so many seconds."""
        return self._clock.now() - self._progress_s <= window_s

    def failed(self, why: str, is_excused: bool = False) -> bool:
        """Note that a probe or a stream failed there; True if it is ejected for that.

        Args:
            why: names the failure.
            is_excused: it was slow only, and works for others.
        """
        if self._ejected_until_s is None:
            # NOTE: a failure after the ejection may quote this text, which would grow without end.
            self.last_failure = why
        if is_excused:
            return False
        self.failures_total += 1
        self._failures_in_row += 1
        if self._ejected_until_s is not None or self._failures_in_row < self._settings.failures_to_eject:
            return False
        pause_s = self._settings.interval_s * 2.0**self._ejections_in_row
        self._ejected_until_s = self._clock.now() + min(pause_s, self._settings.failover_s)
        self._ejections_in_row += 1
        self.ejections_total += 1
        self._failures_in_row = 0
        return True
