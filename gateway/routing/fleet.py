"""Admits streams to the replicas of one service: gives a slot, queues the stream, or refuses it. Pure.

Time comes from a clock, and what replicas do is told from outside; nothing here knows a network or an event loop, so
a simulator can drive it. A slot is given at once, or later through a callback, or refused.

    ask ──room?──► SlotLease ──────────────────────────────► end / fail / refuse
      └─ none ──in time?──► QueueEntry ──a slot comes free──► SlotLease
                  └─ no ──► OverloadedError with when to try again
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from gateway.errors import OverloadedError
from gateway.routing.admission_queue import AdmissionQueue, QueueEntry
from gateway.routing.health import Failure
from gateway.routing.replica import LoadReport, Replica, ReplicaLife
from gateway.routing.replicas import NOBODY, NOWHERE, ReplicaSet
from gateway.routing.settings import RoutingSettings
from gateway.routing.slot_forecast import OpenStreams, SlotForecast, StreamDurations
from servicekit.clock import Clock

LEAST_RETRY_S = 1.0
"""Shortest Retry-After in seconds, which is also its unit."""


class SlotLease:
    """A stream's slot at a replica; given back exactly once."""

    def __init__(self, fleet: Fleet, replica: Replica, opened_s: float) -> None:
        """Made by `Fleet`."""
        self._fleet = fleet
        self.replica = replica
        self.life = replica.life
        self.opened_s = opened_s
        self.on_ejected: Callable[[], None] | None = None
        """Called when the replica is ejected while the stream is here."""
        self.is_open = True

    @property
    def address(self) -> str:
        """The replica's."""
        return self.replica.address

    def worked(self) -> None:
        """Note that the replica did some of the stream's work well."""
        self.replica.health.succeeded()

    def end(self, is_whole: bool = True) -> None:
        """Give the slot back; harmless the second time.

        Args:
            is_whole: the stream held it as long as it needed it; how long is learnt.
        """
        self._fleet.end(self, is_whole)

    def fail(self, why: str, failure: Failure = Failure.WRONG) -> None:
        """Give it back because the replica failed."""
        if not self.is_open:
            return
        self.on_ejected = None
        # NOTE: only a probe proves that the process is gone; a server may have ended just this stream.
        self._fleet.note_failure(self.address, why, Failure.SLOW if failure is Failure.SLOW else Failure.WRONG)
        self._fleet.end(self, is_whole=False)

    def refuse(self) -> None:
        """Give it back because the replica had no room."""
        self._fleet.end(self, is_whole=False, is_full=True)

    def leave_draining(self) -> None:
        """Give it back because the replica stops."""
        self.replica.health.drains()
        self._fleet.end(self, is_whole=False)


class Fleet:
    """Admits streams to the replicas of one service."""

    def __init__(
        self,
        service: str,
        settings: RoutingSettings,
        clock: Clock,
        draw: random.Random | None = None,
        stood_still_within: Callable[[float], bool] = lambda window_s: False,
    ) -> None:
        """Begin without replicas.

        Args:
            service: `token2wav` or `llm`; for names and messages.
            settings: limits of waiting, failing and ejecting; see `RoutingSettings`.
            clock: of everything here.
            draw: chooses among replicas that other gateways use too; None: another one in every process.
            stood_still_within: whether this process's own event loop stood still in the last so many seconds.
        """
        self.service = service
        self.settings = settings
        self.replicas = ReplicaSet(service, settings, clock, draw)
        self.refused_total = 0
        """Streams that were told to come back later."""
        self._clock = clock
        self._stood_still_within = stood_still_within
        self._leases: dict[str, set[SlotLease]] = {}
        """Address of a replica -> slots that this gateway's streams have there."""
        self._queue = AdmissionQueue[SlotLease]()
        self._is_serving_queue = False
        self._durations = StreamDurations()
        self._forecast = SlotForecast(clock, self._durations)

    @property
    def waiting(self) -> int:
        """Streams that wait for a slot."""
        return len(self._queue)

    @property
    def rescue_s(self) -> float:
        """Seconds that a stream which has lost its replica may stand still; an only one takes time to start again."""
        settings = self.settings
        is_only = len(self.replicas.addresses) <= 1
        return max(settings.failover_s, settings.restart_wait_s) if is_only else settings.failover_s

    def set_replicas(self, found: Mapping[str, bool]) -> None:
        """Take over what discovery found; see `ReplicaSet.update`."""
        self.replicas.update(found)
        self._serve_queue()

    def reported(self, address: str, report: LoadReport) -> None:
        """Take over what a replica said of itself."""
        if (replica := self.replicas.find(address)) is not None:
            replica.reported(report)
            self._serve_queue()

    def note_siblings(self, streams: Mapping[str, int]) -> None:
        """Take over how many streams the other processes of this gateway have open at each replica."""
        for address in self.replicas.addresses:
            if (replica := self.replicas.find(address)) is not None:
                replica.note_siblings(streams.get(address, 0))
        self._serve_queue()

    def note_failure(self, address: str, why: str, failure: Failure = Failure.WRONG) -> None:
        """Note that a probe or a stream failed through a replica's fault; streams of one that is ejected are told.

        Slowness is no failure while the replica works for others, or if our own event loop stood still. The streams of
        an ejected replica stay where they are if there is no other one to go to.
        """
        replica = self.replicas.find(address)
        if replica is None:
            return
        if failure is Failure.GONE:
            replica.begin_life()
        if failure is Failure.SLOW and self._is_excused(replica):
            replica.health.was_slow(why)
        elif replica.health.failed(why) and self.replicas.has_other(than=frozenset((address,))):
            self._tell_ejected(address)

    def check(self, priority: int, patience_s: float | None = None) -> None:
        """Refuse what would have to wait too long for its slot.

        Args:
            priority: 1 (first) to 10.
            patience_s: the caller's own bound of the wait, where that is shorter than `admission_wait_s`.

        Raises:
            OverloadedError: as `ask`, without taking a slot.
        """
        if self.replicas.choose_with_room() is None or self._queue.ahead_of(priority):
            self._check_queue(priority, patience_s)

    def ask(
        self,
        priority: int,
        on_leased: Callable[[SlotLease], None],
        avoid: frozenset[str] = NOBODY,
        is_begun: bool = False,
        spared: frozenset[ReplicaLife] = NOWHERE,
    ) -> SlotLease | QueueEntry[SlotLease]:
        """Ask for a slot.

        Args:
            priority: 1 (first) to 10; equal ones in the order of asking.
            on_leased: called with the slot if there is none now; not before this has returned.
            avoid: replicas that come last, because they just failed the stream.
            is_begun: the stream is under way: it goes before all others and is never refused.
            spared: places that the stream must not come back to.

        Raises:
            OverloadedError: no slot is expected to come free within `admission_wait_s`, or too many wait.
        """
        rank = 0 if is_begun else priority
        if not self._queue.ahead_of(rank) and (replica := self.replicas.choose_with_room(avoid, spared)) is not None:
            return self._take_slot(replica)
        if not is_begun:
            self._check_queue(rank)
        return self._queue.join(rank, on_leased, avoid, spared)

    def end(self, slot: SlotLease, is_whole: bool = True, is_full: bool = False) -> None:
        """Take a slot back; harmless the second time.

        Args:
            slot: whose stream has ended.
            is_whole: the stream held it as long as it needed it; how long is learnt.
            is_full: the replica turned out to have no room.
        """
        if not slot.is_open:
            return
        slot.is_open = False
        self._forget(slot)
        slot.replica.give_back()
        if is_full:
            slot.replica.refused()
        if is_whole:
            self._durations.add(self._clock.now() - slot.opened_s)
        self.replicas.forget_if_gone(slot.replica)
        self._serve_queue()

    def retry_after_s(self, priority: int) -> float:
        """Expect when a stream of that priority would find a slot, if it asked again."""
        expected_s = self._forecast.nth_s(self._queue.ahead_of(priority), self._open_streams)
        return LEAST_RETRY_S if expected_s is None else max(LEAST_RETRY_S, expected_s)

    def overloaded(self, priority: int) -> OverloadedError:
        """Make the refusal of a stream that finds no slot in time."""
        self.refused_total += 1
        retry_s = self.retry_after_s(priority)
        got = f"all {self.service} replicas are full and {len(self._queue)} streams wait"
        return OverloadedError(f"{got}; try again in {retry_s:.0f} s, or add replicas", retry_after_s=retry_s)

    def _is_excused(self, replica: Replica) -> bool:
        window_s = replica.progress_window_s
        return replica.health.progressed_within(window_s) or self._stood_still_within(window_s)

    def _tell_ejected(self, address: str) -> None:
        for slot in list(self._leases.get(address, ())):
            if slot.on_ejected is not None:
                slot.on_ejected()

    def _check_queue(self, rank: int, patience_s: float | None = None) -> None:
        expected_s = self._forecast.nth_s(self._queue.ahead_of(rank), self._open_streams)
        wait_s = (
            self.settings.admission_wait_s if patience_s is None else min(patience_s, self.settings.admission_wait_s)
        )
        is_late = expected_s is not None and expected_s > wait_s
        if is_late or len(self._queue) >= self.settings.max_waiting:
            raise self.overloaded(rank)

    def _take_slot(self, replica: Replica) -> SlotLease:
        slot = SlotLease(self, replica, self._clock.now())
        replica.take()
        self._leases.setdefault(replica.address, set()).add(slot)
        return slot

    def _forget(self, slot: SlotLease) -> None:
        leases = self._leases[slot.address]
        leases.discard(slot)
        if not leases:
            del self._leases[slot.address]

    def _open_streams(self) -> list[OpenStreams]:
        """Return what is open at the replicas that would take streams if they had room."""
        return [
            OpenStreams([slot.opened_s for slot in self._leases.get(replica.address, ())], replica.others)
            for replica in self.replicas.usable()
        ]

    def _serve_queue(self) -> None:
        if self._is_serving_queue:
            return  # NOTE: a slot that nobody wants any more comes back from within the loop, which sees it
        self._is_serving_queue = True
        try:
            while (turn := self._next_turn()) is not None:
                entry, replica = turn
                self._queue.leave(entry)
                entry.on_leased(self._take_slot(replica))
        finally:
            self._is_serving_queue = False

    def _next_turn(self) -> tuple[QueueEntry[SlotLease], Replica] | None:
        """Return the stream that gets a slot now; one that waits for a certain replica does not block the others."""
        for entry in self._queue.in_order():
            replica = self.replicas.choose_with_room(entry.avoid, entry.spared)
            if replica is not None:
                return entry, replica
            if not entry.spared:
                return None
        return None
