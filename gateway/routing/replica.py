"""Keeps the state of one replica: its health, its own report, and this process's open streams there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.routing.health import Health
from gateway.routing.settings import YIELDED_S, RoutingSettings
from servicekit.clock import Clock

ReplicaLife = tuple[str, int]
"""A replica's address, and the number of its earlier lives: one that is started again knows nothing of its streams."""


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


class Replica(Health):
    """The state of one replica, as this process knows it; totals count from the gateway's start."""

    def __init__(self, service: str, address: str, settings: RoutingSettings, clock: Clock) -> None:
        """Begin with nothing open and nothing known.

        Args:
            service: `token2wav` or `llm`.
            address: host:port, or the URL of an LLM.
            settings: of ejections.
            clock: of everything here.
        """
        super().__init__(settings, clock)
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
        self._lives = 0
        self._report = LoadReport()
        self._full_at: int | None = None
        """Streams of ours with which it refused another one; None: it has not, or has reported since."""
        self._was_refused = False
        self._yielded_until_s: tuple[float, ...] = ()

    @property
    def life(self) -> ReplicaLife:
        """Its address in this life."""
        return self.address, self._lives

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
        self._lives += 1

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
