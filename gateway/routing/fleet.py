"""Leases slots at the replicas of one service, and tells streams when their replica is ejected. Pure.

Time comes from a clock, and what replicas do is told from outside; nothing here knows a network or an event loop, so
a simulator can drive it. Who waits for a slot, and in which order, is `admission_queue`'s business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gateway.errors import OverloadedError
from gateway.routing.health import Failure
from gateway.routing.replica import LoadReport, Replica, ReplicaLife
from gateway.routing.replicas import NOBODY, NOWHERE, ReplicaSet
from gateway.routing.settings import RoutingSettings
from servicekit.clock import Clock

LEAST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Shortest and longest Retry-After in seconds."""


class SlotLease:
    """A stream's slot at a replica; given back exactly once."""

    def __init__(self, fleet: Fleet, replica: Replica) -> None:
        """Made by `Fleet`."""
        self._fleet = fleet
        self.replica = replica
        self.life = replica.life
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
            is_whole: a stream was open there, so that there is room for another one.
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

    def refuse(self, retry_after_s: float | None = None) -> None:
        """Give it back because the replica had no room; it may have said when it will."""
        if retry_after_s is not None:
            self.replica.next_end_s = retry_after_s
        self._fleet.end(self, is_whole=False, is_full=True)

    def leave_draining(self) -> None:
        """Give it back because the replica stops."""
        self.replica.health.drains()
        self._fleet.end(self, is_whole=False)


class Fleet:
    """Leases slots at the replicas of one service."""

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
        self.on_room: Callable[[], None] = lambda: None
        """Called when there may be room for another stream."""
        self.looking = 0
        """Streams that were admitted and look for a slot: nobody else is admitted before they have one."""
        self._draw = draw or random.Random()
        self._stood_still_within = stood_still_within
        self._leases: dict[str, set[SlotLease]] = {}
        """Address of a replica -> slots that this process's streams have there."""

    @property
    def rescue_s(self) -> float:
        """Seconds that a stream which has lost its replica may stand still; an only one takes time to start again."""
        settings = self.settings
        is_only = len(self.replicas.addresses) <= 1
        return max(settings.failover_s, settings.restart_wait_s) if is_only else settings.failover_s

    def set_replicas(self, found: Mapping[str, bool]) -> None:
        """Take over what discovery found; see `ReplicaSet.update`."""
        self.replicas.update(found)
        self.on_room()

    def reported(self, address: str, report: LoadReport) -> None:
        """Take over what a replica said of itself."""
        if (replica := self.replicas.find(address)) is not None:
            replica.reported(report)
            self.on_room()

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

    def lease(
        self, avoid: frozenset[str] = NOBODY, spared: frozenset[ReplicaLife] = NOWHERE, ignores_limit: bool = False
    ) -> SlotLease | None:
        """Take a slot at the least loaded replica that has one; None if all are full.

        Args:
            avoid: replicas that come last, because they just failed or refused the stream.
            spared: places that the stream must not come back to.
            ignores_limit: also at a replica that seems full, as it may admit the stream nevertheless.
        """
        replica = self.replicas.choose_with_room(avoid, spared, ignores_limit)
        if replica is None:
            return None
        slot = SlotLease(self, replica)
        replica.take()
        self._leases.setdefault(replica.address, set()).add(slot)
        return slot

    @contextmanager
    def looked(self, counts: bool = True) -> Iterator[None]:
        """Count one stream more among those that look for a slot, if it `counts`."""
        self.looking += counts
        try:
            yield
        finally:
            self.looking -= counts

    def end(self, slot: SlotLease, is_whole: bool = True, is_full: bool = False) -> None:
        """Take a slot back; harmless the second time.

        Args:
            slot: whose stream has ended.
            is_whole: a stream was open there.
            is_full: the replica turned out to have no room.
        """
        if not slot.is_open:
            return
        slot.is_open = False
        self._forget(slot)
        slot.replica.give_back(is_whole)
        if is_full:
            slot.replica.refused()
        self.replicas.forget_if_gone(slot.replica)
        self.on_room()

    def overloaded(self, waiting: int = 0) -> OverloadedError:
        """Make the refusal of a stream that found no slot in time.

        Those who are refused together come back at moments spread over the time in which all who wait find slots.
        """
        all_s = self.replicas.next_end_s() * (waiting + 1)
        retry_s = self._draw.uniform(LEAST_RETRY_S, min(max(LEAST_RETRY_S, all_s), MAX_RETRY_S))
        got = f"the {self.service} replicas serve as many streams as they can in time, and {waiting} requests wait"
        return OverloadedError(f"{got}; try again in {retry_s:.0f} s, or add replicas", retry_after_s=retry_s)

    def _is_excused(self, replica: Replica) -> bool:
        window_s = replica.progress_window_s
        return replica.health.progressed_within(window_s) or self._stood_still_within(window_s)

    def _tell_ejected(self, address: str) -> None:
        for slot in list(self._leases.get(address, ())):
            if slot.on_ejected is not None:
                slot.on_ejected()

    def _forget(self, slot: SlotLease) -> None:
        leases = self._leases[slot.address]
        leases.discard(slot)
        if not leases:
            del self._leases[slot.address]
