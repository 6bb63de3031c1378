"""Keeps the state of one replica: its own report, this gateway's open streams there, and its speed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.routing.health import Health, ReplicaState
from gateway.routing.settings import RoutingSettings
from servicekit.clock import Clock

ReplicaLife = tuple[str, int]
"""A replica's address, and the number of its earlier lives: one that is started again knows nothing of its streams."""
_LEAST_PROGRESS_S = 5.0
_STEPS_OF_PROGRESS = 3.0
COST_MEMORY_S = 10.0
"""Seconds without work after which a cost is forgotten: one measured under load would keep an idle replica idle."""


@dataclass(frozen=True)
class LoadReport:
    """A replica's own report when it is probed; None where it does not say."""

    is_draining: bool = False
    slots: int | None = None
    open_streams: int | None = None
    """Open streams of all gateways."""
    step_s: float | None = None
    """Seconds of a recent step."""
    step_streams: int = 1
    """Streams that one step can take."""
    steps: int = 0
    """Steps run since the start; tells whether `step_s` is new."""


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
    """Streams that it can hold; None while it has not said, and for an LLM."""
    free_slots: int | None
    """Free slots as far as this gateway knows: other gateways may hold some."""
    step_s: float | None
    """Seconds of a recent step of token2wav, or between two tokens of an LLM's answer; None if none was measured."""
    opened_total: int
    failures_total: int
    """Streams and probes that failed there."""
    ejections_total: int
    failovers_total: int
    """Streams begun there that went on elsewhere, or there once more."""


class Replica:
    """The state of one replica, as this gateway knows it."""

    def __init__(self, service: str, address: str, settings: RoutingSettings, clock: Clock) -> None:
        """Begin with nothing open and nothing known."""
        self.service = service
        self.address = address
        self.health = Health(settings, clock)
        self.ours = 0
        """Streams that this process has open here."""
        self.siblings = 0
        """Streams that the other processes of this gateway have open here."""
        self.foreign = 0
        """Streams that other gateways have open here, when it reported last."""
        self.unslotted_calls = 0
        """Calls under way there that need no slot."""
        self.opened_total = 0
        self.failovers_total = 0
        self._lives = 0
        self._clock = clock
        self._report = LoadReport()
        self._unknown_at_report = 0
        """Streams of its last report that belong to no process of this gateway."""
        self._has_siblings = False
        self._is_full = False
        self._step_s: float | None = None
        self._cost_s: float | None = None
        self._cost_at_s = 0.0

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
        return max(_LEAST_PROGRESS_S, _STEPS_OF_PROGRESS * (self._step_s or 0.0))

    def begin_life(self) -> None:
        """Note that the replica was restarted and has lost its streams."""
        self._lives += 1

    @property
    def streams(self) -> int:
        """Streams open here, as far as we know: what it reported and what we did since, and our gateway's at least."""
        return self.foreign + self.siblings + self.ours

    @property
    def others(self) -> int:
        """The open streams of other processes among them."""
        return self.streams - self.ours

    @property
    def slots(self) -> int | None:
        """Streams that it can hold; None if it has not said."""
        return self._report.slots

    @property
    def free_slots(self) -> int | None:
        """Free slots, as far as is known; None if the replica has not said how many slots it has."""
        if self._is_full:
            return 0
        return None if self._report.slots is None else max(0, self._report.slots - self.streams)

    @property
    def has_room(self) -> bool:
        """Whether one more stream would be taken; one that has not said its slots is asked."""
        return self.free_slots != 0

    @property
    def cost_s(self) -> float | None:
        """Seconds of its time that the next piece of one stream takes; None if nothing was measured lately."""
        is_fresh = self._clock.now() - self._cost_at_s <= COST_MEMORY_S
        return self._cost_s if is_fresh else None

    def expected_wait_s(self, unmeasured_cost_s: float) -> float:
        """Expect how long the next piece of a new stream takes, behind one piece of every stream that is open."""
        cost_s = self.cost_s
        return (unmeasured_cost_s if cost_s is None else cost_s) * (self.streams + 1)

    def take(self) -> None:
        """Note that a stream is opened."""
        self.ours += 1
        self.opened_total += 1

    def give_back(self) -> None:
        """Note that a stream has ended."""
        self.ours -= 1
        self._is_full = False

    def refused(self) -> None:
        """Note that it had no room although it seemed so; holds until it reports again or a stream of ours ends."""
        self._is_full = True

    def reported(self, report: LoadReport) -> None:
        """Note what it says of itself."""
        if report.steps < self._report.steps:
            self.begin_life()
        if report.step_s is not None and report.steps != self._report.steps:
            self._step_s = report.step_s
            self.measured(report.step_s / max(1, report.step_streams))
        self._report = report
        unknown = max(0, (report.open_streams or 0) - self.ours - self.siblings)
        # NOTE: a report may have a sibling's stream that we don't know yet; one in two reports is another gateway's.
        self.foreign = min(unknown, self._unknown_at_report) if self._has_siblings else unknown
        self._unknown_at_report = unknown
        self._is_full = False
        self.health.answered_probe(report.is_draining)

    def note_siblings(self, streams: int) -> None:
        """Note how many streams the other processes of this gateway have open here."""
        self._has_siblings = True
        self.siblings = streams

    def measured(self, cost_s: float) -> None:
        """Note a measurement of its speed."""
        self._cost_s = cost_s
        self._cost_at_s = self._clock.now()

    def status(self) -> ReplicaStatus:
        """Return the facts of this moment."""
        return ReplicaStatus(
            service=self.service,
            address=self.address,
            state=self.state,
            open_streams=self.ours,
            slots=self.slots,
            free_slots=self.free_slots,
            step_s=self._step_s if self._step_s is not None else self.cost_s,
            opened_total=self.opened_total,
            failures_total=self.health.failures_total,
            ejections_total=self.health.ejections_total,
            failovers_total=self.failovers_total,
        )
