"""The replicas of one service: which of them gets the next stream, and who waits for one. Pure.

Time comes from a clock, and what replicas do is told from outside; nothing here knows a network or an event loop, so
a simulator can drive it. A slot is given at once, or later through a callback, or refused.

    ask ──room?──► SlotLease ──────────────────────────────► end / fail / refused
      └─ none ──in time?──► QueueEntry ──a slot comes free──► SlotLease
                  └─ no ──► OverloadedError with when to try again
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gateway.errors import OverloadedError
from gateway.routing.admission_queue import AdmissionQueue, QueueEntry
from gateway.routing.replica import LoadReport, Replica
from gateway.routing.settings import RoutingSettings
from gateway.routing.slot_forecast import OpenStreams, SlotForecast, StreamDurations
from gateway.routing.status import ReplicaState, ReplicaStatus
from servicekit.clock import Clock

LEAST_RETRY_S = 1.0
"""The unit of HTTP's Retry-After."""
NOBODY: frozenset[str] = frozenset()
CHOICES_BESIDE_OTHERS = 2
"""Replicas that a gateway looks at for one stream, drawn at random, where other gateways use them too: each sees the
others' streams only when it probes, and all would send everything to the same replica until then."""


class SlotLease:
    """A stream's slot at a replica; given back exactly once."""

    def __init__(self, fleet: Fleet, replica: Replica, opened_s: float) -> None:
        """Made by `Fleet`."""
        self._fleet = fleet
        self.replica = replica
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

    def fail(self, why: str) -> None:
        """Give it back because the replica failed."""
        if not self.is_open:
            return
        self.on_ejected = None
        self._fleet.note_failure(self.address, why)
        self._fleet.end(self, is_whole=False)

    def refuse(self) -> None:
        """Give it back because the replica had no room."""
        self._fleet.end(self, is_whole=False, is_full=True)

    def leave_draining(self) -> None:
        """Give it back because the replica stops."""
        self.replica.health.drains()
        self._fleet.end(self, is_whole=False)


class Fleet:
    """All replicas of one service."""

    def __init__(
        self, service: str, settings: RoutingSettings, clock: Clock, draw: random.Random | None = None
    ) -> None:
        """Begin without replicas.

        Args:
            service: `token2wav` or `llm`; for names and messages.
            settings: see there.
            clock: of everything here.
            draw: chooses among replicas that other gateways use too; None: another one in every process.
        """
        self._draw = draw or random.Random()
        self.service = service
        self.settings = settings
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._leases: dict[str, set[SlotLease]] = {}
        self._gone: set[str] = set()
        self.refused_total = 0
        """Streams that were told to come back later."""
        self._queue = AdmissionQueue[SlotLease]()
        self._is_serving_queue = False
        self._durations = StreamDurations()
        self._forecast = SlotForecast(clock, self._durations)

    @property
    def addresses(self) -> list[str]:
        """Of all replicas, also those that only finish their streams."""
        return list(self._replicas)

    @property
    def is_ready(self) -> bool:
        """Whether any replica is known to take streams."""
        return any(replica.state is ReplicaState.READY for replica in self._replicas.values())

    @property
    def waiting(self) -> int:
        """Streams that wait for a slot."""
        return len(self._queue)

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica."""
        # NOTE: of a copy, as scrapers ask from threads of their own.
        return tuple(replica.status() for replica in list(self._replicas.values()))

    def state_of(self, address: str) -> ReplicaState | None:
        """Return what a replica is good for; None if there is none at that address."""
        replica = self._replicas.get(address)
        return replica.state if replica is not None else None

    def trouble(self) -> str:
        """Say in words why no replica can be had."""
        told = [
            f"{replica.address} is {replica.state.value}"
            + (f" ({replica.health.last_failure})" if replica.health.last_failure else "")
            for replica in self._replicas.values()
        ]
        return "; ".join(told) or "none was found"

    def set_replicas(self, found: Mapping[str, bool]) -> None:
        """Take over what discovery found: address -> whether it may get new streams.

        One that is gone finishes its streams and is forgotten then.
        """
        for address in found:
            if address not in self._replicas:
                self._replicas[address] = Replica(self.service, address, self.settings, self._clock)
                self._leases[address] = set()
        self._gone = set(self._replicas) - set(found)
        for address, replica in list(self._replicas.items()):
            replica.health.set_listed(found.get(address, False))
            if address in self._gone:
                self._forget_if_idle(address)
        self._serve_queue()

    def reported(self, address: str, report: LoadReport) -> None:
        """Take over what a replica said of itself."""
        if address in self._replicas:
            self._replicas[address].reported(report)
            self._serve_queue()

    def note_failure(self, address: str, why: str) -> None:
        """Note that a probe or a stream failed through a replica's fault; streams of one that is ejected are told."""
        replica = self._replicas.get(address)
        if replica is not None and replica.health.failed(why):
            for slot in list(self._leases[address]):
                if slot.on_ejected is not None:
                    slot.on_ejected()

    def check(self, priority: int, patience_s: float | None = None) -> None:
        """Refuse what would have to wait too long for its slot.

        Args:
            priority: 1 (first) to 10.
            patience_s: the caller's own bound of the wait, where that is shorter than `admission_wait_s`.

        Raises:
            OverloadedError: as `ask`, without taking a slot.
        """
        if self._best(NOBODY) is None or self._queue.ahead_of(priority):
            self._check_queue(priority, patience_s)

    def ask(
        self,
        priority: int,
        on_leased: Callable[[SlotLease], None],
        avoid: frozenset[str] = NOBODY,
        is_begun: bool = False,
    ) -> SlotLease | QueueEntry[SlotLease]:
        """Ask for a slot.

        Args:
            priority: 1 (first) to 10; equal ones in the order of asking.
            on_leased: called with the slot if there is none now; not before this has returned.
            avoid: replicas that come last, because they just failed the stream.
            is_begun: the stream is under way: it goes before all others and is never refused.

        Raises:
            OverloadedError: no slot is expected to come free within `admission_wait_s`, or too many wait.
        """
        rank = 0 if is_begun else priority
        if not self._queue.ahead_of(rank) and (replica := self._best(avoid)) is not None:
            return self._take_slot(replica)
        if not is_begun:
            self._check_queue(rank)
        return self._queue.join(rank, on_leased, avoid)

    def unslotted_replica(self, avoid: frozenset[str] = NOBODY) -> Replica | None:
        """Return the replica for work that needs no slot; None if none can be had."""
        return self._first(self._usable(), avoid)

    @contextmanager
    def unslotted_call(self, replica: Replica) -> Iterator[None]:
        """Do such work there: a replica that discovery drops meanwhile is not forgotten before its end."""
        replica.unslotted_calls += 1
        try:
            yield
        finally:
            replica.unslotted_calls -= 1
            if replica.address in self._gone:
                self._forget_if_idle(replica.address)

    def has_other(self, than: frozenset[str]) -> bool:
        """Tell whether any replica can be had beside those."""
        return any(replica.address not in than for replica in self._usable())

    def retry_after_s(self, priority: int) -> float:
        """Expect when a stream of that priority would find a slot, if it asked again."""
        expected_s = self._forecast.nth_s(self._queue.ahead_of(priority), self._open_streams)
        return LEAST_RETRY_S if expected_s is None else max(LEAST_RETRY_S, expected_s)

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
        address = slot.address
        self._leases[address].discard(slot)
        slot.replica.give_back()
        if is_full:
            slot.replica.refused()
        if is_whole:
            self._durations.add(self._clock.now() - slot.opened_s)
        if address in self._gone:
            self._forget_if_idle(address)
        self._serve_queue()

    def overloaded(self, priority: int) -> OverloadedError:
        """Make the refusal of a stream that finds no slot in time."""
        self.refused_total += 1
        retry_s = self.retry_after_s(priority)
        got = f"all {self.service} replicas are full and {len(self._queue)} streams wait"
        return OverloadedError(f"{got}; try again in {retry_s:.0f} s, or add replicas", retry_after_s=retry_s)

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
        self._leases[replica.address].add(slot)
        return slot

    def _best(self, avoid: frozenset[str]) -> Replica | None:
        """Return the replica with room where a new stream is served soonest."""
        return self._first([replica for replica in self._usable() if replica.has_room], avoid)

    def _usable(self) -> list[Replica]:
        """Return those that may get streams if they have room: the ready, else those that no probe has reached yet."""
        for state in (ReplicaState.READY, ReplicaState.UNKNOWN):
            if usable := [replica for replica in self._replicas.values() if replica.state is state]:
                return usable
        return []

    def _first(self, candidates: list[Replica], avoid: frozenset[str]) -> Replica | None:
        """Return the one that serves soonest of those looked at; one to avoid only if there are no others."""
        chosen = [replica for replica in candidates if replica.address not in avoid] or candidates
        if len(chosen) > CHOICES_BESIDE_OTHERS and any(replica.others for replica in self._replicas.values()):
            chosen = self._draw.sample(chosen, CHOICES_BESIDE_OTHERS)
        return min(chosen, key=self._rank(candidates), default=None)

    def _rank(self, usable: list[Replica]) -> Callable[[Replica], tuple[float, int, int, float]]:
        unmeasured_s = min((cost_s for replica in usable if (cost_s := replica.cost_s) is not None), default=1.0)

        def rank(replica: Replica) -> tuple[float, int, int, float]:
            # NOTE: what is equal to the end is drawn, or all gateways would begin with the same replica.
            return replica.expected_wait_s(unmeasured_s), replica.streams, replica.opened_total, self._draw.random()

        return rank

    def _open_streams(self) -> list[OpenStreams]:
        """Return what is open at the replicas that would take streams if they had room."""
        return [
            OpenStreams([slot.opened_s for slot in self._leases[replica.address]], replica.others)
            for replica in self._usable()
        ]

    def _serve_queue(self) -> None:
        if self._is_serving_queue:
            return  # NOTE: a slot that nobody wants any more comes back from within the loop, which sees it
        self._is_serving_queue = True
        try:
            while (entry := self._queue.first) is not None and (replica := self._best(entry.avoid)) is not None:
                self._queue.leave(entry)
                entry.on_leased(self._take_slot(replica))
        finally:
            self._is_serving_queue = False

    def _forget_if_idle(self, address: str) -> None:
        if not self._leases[address] and not self._replicas[address].unslotted_calls:
            del self._replicas[address], self._leases[address]
