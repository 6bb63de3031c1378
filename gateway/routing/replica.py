"""Keeps the state of one replica: its health, its own report, and this process's open streams there.

    unknown ──probe──► ready ◄──probe, after a pause──── ejected
                        │  └──failures in a row────────────▲
                        ▼                                  │
                     draining ─────failures in a row───────┘

Pure: time comes from a clock, answers from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from servicekit.clock import Clock

MAX_WAITING = 1024
"""Most requests of one gateway process that wait for their turn."""
LOOK_AGAIN_S = 0.05
"""Seconds between two looks of a stream for a slot, and between two tries of a stream."""
YIELDED_S = 4 * LOOK_AGAIN_S
"""Seconds in which a slot that a stream of ours leaves is left to other gateways, times our share of the streams
there: without that, a gateway with many streams would take every slot before one with few can ask for it."""


@dataclass(frozen=True)
class RoutingSettings:
    """What holds for every replica of both services. Operators set `admission_wait_s`; tests set the others."""

    admission_wait_s: float = 1.0
    """Most seconds that a request waits for a free slot or a live replica."""
    interval_s: float = 1.0
    """Seconds between two probes of a replica, and between two look-ups of a DNS name; also the first ejection."""
    failures_to_eject: int = 3
    """Failures in a row, of streams and probes, after which a replica gets no new streams."""
    failover_s: float = 30.0
    """Most seconds that a stream under way stands still while it looks for another replica; also of an ejection."""
    restart_wait_s: float = 120.0
    """Most seconds of that stand-still if the service has no other replica, so that it must be started again."""
    max_failovers: int = 3
    """Most times that one stream is built anew, and that one answer of the LLM is asked for anew."""


ReplicaLife = tuple[str, int]
"""A replica's address, and the number of its earlier lives: one that is started again knows nothing of its streams."""


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


@dataclass(frozen=True)
class LoadReport:
    """A replica's own report when it is probed; None where it does not say."""

    is_draining: bool = False
    slots: int | None = None
    """Streams that it admits at once now."""
    open_streams: int | None = None
    """Open streams of all gateways."""
    step_s: float | None = None
    """Seconds of a recent step."""
    steps: int = 0
    """Steps run since the start; fewer than before tell that it was started again."""
    next_end_s: float | None = None
    """Expected seconds until a stream ends that leaves room for another one."""


class Replica:
    """The state of one replica, as this process knows it; totals count from the gateway's start."""

    def __init__(self, service: str, address: str, settings: RoutingSettings, clock: Clock) -> None:
        """Begin with nothing open and nothing known.

        Args:
            service: `token2wav` or `llm`.
            address: host:port, or the URL of an LLM.
        """
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
        self.last_failure = ""
        """Text of the latest failure, or of the one that ejected it; empty if there was none."""
        self.service = service
        self.address = address
        self.open_streams = 0
        """Streams that this process has open here: leases of token2wav, generations of an LLM."""
        self.foreign = 0
        """Streams that others have open here, when it reported last."""
        self.unslotted_calls = 0
        """Calls under way there that need no slot."""
        self.opened_total = 0
        self.failovers_total = 0
        """Streams begun here that went on elsewhere, or here once more."""
        self.next_end_s = settings.interval_s
        """Expected seconds until a stream ends there that leaves room for another one."""
        self.life: ReplicaLife = (address, 0)
        """Its address in this life."""
        self._report = LoadReport()
        self._full_at: int | None = None
        """Streams of ours with which it refused another one; None: it has not, or has reported since."""
        self._was_refused = False
        self._yielded_until_s: tuple[float, ...] = ()

    @property
    def step_s(self) -> float | None:
        """Seconds of a recent step; None if it has not told one."""
        return self._report.step_s

    @property
    def patience_s(self) -> float:
        """Seconds in which one that works does something: three steps, or twice the time in which probes eject it."""
        return self._settings.failures_to_eject * max(2 * self._settings.interval_s, self.step_s or 0.0)

    def begin_life(self) -> None:
        """Note that the replica was restarted and has lost its streams."""
        self.life = (self.address, self.life[1] + 1)

    @property
    def free_slots(self) -> int | None:
        """Free slots, as far as is known; None if the replica has not said how many streams it admits."""
        if self._full_at is not None:
            return max(0, self._full_at - self.open_streams)
        if self._report.slots is None:
            return None
        now_s = self._clock.now()
        yielded = sum(until_s > now_s for until_s in self._yielded_until_s)
        return max(0, self._report.slots - self.foreign - self.open_streams - yielded)

    @property
    def load(self) -> float:
        """Share of the streams that it admits which it would have with one more; their number if it does not say."""
        return (self.foreign + self.open_streams + 1) / (self._report.slots or 1)

    def take(self) -> None:
        """Note that a stream is opened."""
        self.open_streams += 1
        self.opened_total += 1

    def give_back(self, is_whole: bool) -> None:
        """Note that a stream has ended, or was not opened."""
        if is_whole and self.foreign:
            now_s, share = self._clock.now(), self.open_streams / (self.foreign + self.open_streams)
            waiting = (until_s for until_s in self._yielded_until_s if until_s > now_s)
            self._yielded_until_s = (*waiting, now_s + YIELDED_S * share)
        self.open_streams -= 1

    def refused(self) -> None:
        """Note that it had no room although it seemed so; holds until it reports again or a stream of ours ends."""
        self._full_at, self._was_refused = self.open_streams, True

    def reported(self, report: LoadReport) -> None:
        """Note what it says of itself."""
        if report.steps < self._report.steps:
            self.begin_life()
        self._report, ours = report, self.open_streams
        self.next_end_s = self._settings.interval_s if report.next_end_s is None else report.next_end_s
        self.foreign = max(0, (report.open_streams or 0) - ours)
        if report.slots is not None or not ours:
            self._full_at = None
        elif self._full_at is not None:
            # NOTE: one that does not say its slots gets a few streams more, or all that wait would be refused at once.
            self._full_at = ours + (1 if self._was_refused else max(1, ours // 4))
        self._was_refused = False
        self.answered_probe(report.is_draining)

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
        self._failures_in_row = 0
        return True
