"""Keeps the state of one replica: its own report, and this process's open streams there. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.routing.health import Health, ReplicaState
from gateway.routing.settings import RoutingSettings
from servicekit.clock import Clock

ReplicaLife = tuple[str, int]
"""A replica's address, and the number of its earlier lives: one that is started again knows nothing of its streams."""
_LEAST_PROGRESS_S, _STEPS_OF_PROGRESS = 5.0, 3.0
YIELDED_S = 0.2
"""Seconds in which a slot that a stream of ours leaves is left to other gateways, times our share of the streams
there: without that, a gateway with many streams would take every slot before one with few can ask for it."""


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
    next_end_s: float = 1.0
    """Expected seconds until a stream ends that leaves room for another one."""


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica at one moment; totals count from the gateway's start."""

    service: str
    """`token2wav` or `llm`."""
    address: str
    """host:port, or the URL of an LLM."""
    state: ReplicaState
    open_streams: int
    """Streams of this process: leases of token2wav, generations of an LLM."""
    slots: int | None
    """Streams that it admits at once; None while it has not said."""
    free_slots: int | None
    """Free slots as far as this process knows."""
    step_s: float | None
    """Seconds of a recent step of token2wav; None if none was measured."""
    opened_total: int
    failures_total: int
    """Streams and probes that failed there."""
    ejections_total: int
    failovers_total: int
    """Streams begun there that went on elsewhere, or there once more."""


class Replica:
    """The state of one replica, as this process knows it."""

    def __init__(self, service: str, address: str, settings: RoutingSettings, clock: Clock) -> None:
        """Begin with nothing open and nothing known."""
        self.service = service
        self.address = address
        self.health = Health(settings, clock)
        self.ours = 0
        """Streams that this process has open here."""
        self.foreign = 0
        """Streams that others have open here, when it reported last."""
        self.unslotted_calls = 0
        """Calls under way there that need no slot."""
        self.opened_total = 0
        self.failovers_total = 0
        self.next_end_s = 1.0
        """Expected seconds until a stream ends there that leaves room for another one."""
        self._lives = 0
        self._clock = clock
        self._report = LoadReport()
        self._full_at: int | None = None
        """Streams of ours with which it refused another one; None: it has not, or has reported since."""
        self._was_refused = False
        self._yielded_until_s: deque[float] = deque()

    @property
    def state(self) -> ReplicaState:
        """Whether it may get streams now."""
        return self.health.state

    @property
    def life(self) -> ReplicaLife:
        """Its address in this life."""
        return self.address, self._lives

    @property
    def progress_window_s(self) -> float:
        """One that did some of its work within so many seconds is slow at most."""
        return max(_LEAST_PROGRESS_S, _STEPS_OF_PROGRESS * (self._report.step_s or 0.0))

    def begin_life(self) -> None:
        """Note that the replica was restarted and has lost its streams."""
        self._lives += 1

    @property
    def streams(self) -> int:
        """Streams open here, as far as we know: what it reported and what we did since."""
        return self.foreign + self.ours

    @property
    def free_slots(self) -> int | None:
        """Free slots, as far as is known; None if the replica has not said how many streams it admits."""
        if self._full_at is not None:
            return max(0, self._full_at - self.ours)
        if self._report.slots is None:
            return None
        while self._yielded_until_s and self._yielded_until_s[0] <= self._clock.now():
            self._yielded_until_s.popleft()
        return max(0, self._report.slots - self.streams - len(self._yielded_until_s))

    @property
    def load(self) -> float:
        """Share of the streams that it admits which it would have with one more; their number if it does not say."""
        return (self.streams + 1) / (self._report.slots or 1)

    def take(self) -> None:
        """Note that a stream is opened."""
        self.ours += 1
        self.opened_total += 1

    def give_back(self, is_whole: bool) -> None:
        """Note that a stream has ended, or was not opened."""
        if is_whole and self.foreign:
            self._yielded_until_s.append(self._clock.now() + YIELDED_S * self.ours / self.streams)
        self.ours -= 1

    def refused(self) -> None:
        """Note that it had no room although it seemed so; holds until it reports again or a stream of ours ends."""
        self._full_at, self._was_refused = self.ours, True

    def reported(self, report: LoadReport) -> None:
        """Note what it says of itself."""
        if report.steps < self._report.steps:
            self.begin_life()
        self._report, self.next_end_s = report, report.next_end_s
        self.foreign = max(0, (report.open_streams or 0) - self.ours)
        if report.slots is not None or not self.ours:
            self._full_at = None
        elif self._full_at is not None:
            # NOTE: one that does not say its slots gets a few streams more, or all that wait would be refused at once.
            self._full_at = self.ours + (1 if self._was_refused else max(1, self.ours // 4))
        self._was_refused = False
        self.health.answered_probe(report.is_draining)

    def status(self) -> ReplicaStatus:
        """Return the facts of this moment."""
        return ReplicaStatus(
            service=self.service,
            address=self.address,
            state=self.state,
            open_streams=self.ours,
            slots=self._report.slots,
            free_slots=self.free_slots,
            step_s=self._report.step_s,
            opened_total=self.opened_total,
            failures_total=self.health.failures_total,
            ejections_total=self.health.ejections_total,
            failovers_total=self.failovers_total,
        )
