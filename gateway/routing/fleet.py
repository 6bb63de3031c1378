"""The replicas of one service: which gets the next stream, and who is told when a replica is ejected. Pure.

Time comes from a clock, and what replicas do is told from outside; nothing here knows a network or an event loop, so
a simulator can drive it. Who waits for a slot, and in which order, is `admission_queue`'s business.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from gateway.errors import GatewayError, LLMUnavailableError, OverloadedError, Token2WavUnavailableError
from gateway.routing.replica import (
    LOOK_AGAIN_S,
    FailureKind,
    LoadReport,
    Replica,
    ReplicaLife,
    ReplicaState,
    RoutingSettings,
)
from servicekit.clock import Clock

LLM = "llm"
TOKEN2WAV = "token2wav"
NOBODY: frozenset[str] = frozenset()
NOWHERE: frozenset[ReplicaLife] = frozenset()
_UNAVAILABLE: dict[str, type[GatewayError]] = {LLM: LLMUnavailableError, TOKEN2WAV: Token2WavUnavailableError}


class SlotLease:
    """A stream's slot at a replica; given back exactly once."""

    def __init__(self, fleet: Fleet, replica: Replica) -> None:
        self._fleet = fleet
        self.replica = replica
        self.address, self.life = replica.address, replica.life
        self.on_ejected: Callable[[], None] | None = None
        """Called when the replica is ejected while the stream is here."""
        self.is_open = True

    def end(self, is_whole: bool = True, is_full: bool = False) -> None:
        """Give the slot back; harmless the second time.

        Args:
            is_whole: a stream was open there, so that there is room for another one.
            is_full: the replica turned out to have no room.
        """
        if self.is_open:
            self.is_open = False
            self._fleet.ended(self, is_whole, is_full)

    def fail(self, why: str, kind: FailureKind = FailureKind.WRONG) -> None:
        """Give it back because the replica failed."""
        if not self.is_open:
            return
        self.on_ejected = None
        # NOTE: only a probe proves that the process is gone; a server may have ended just this stream.
        self._fleet.note_failure(self.address, why, FailureKind.WRONG if kind is FailureKind.GONE else kind)
        self.end(is_whole=False)

    def refuse(self, retry_after_s: float | None = None) -> None:
        """Give it back because the replica had no room; it may have said when it will."""
        if retry_after_s is not None:
            self.replica.next_end_s = retry_after_s
        self.end(is_whole=False, is_full=True)

    def leave_draining(self) -> None:
        """Give it back because the replica stops."""
        self.replica.is_draining = True
        self.end(is_whole=False)


class Fleet:
    """All replicas of one service, and the slots that streams of this process have there."""

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
            draw: chooses among replicas that other gateways use too; None: another one in every process.
            stood_still_within: whether this process's own event loop stood still in the last so many seconds.
        """
        self.service = service
        self.settings = settings
        self.on_room: Callable[[], None] = lambda: None
        """Called when there may be room for another stream."""
        self.looking = 0
        """Streams that were admitted and look for a slot: nobody else is admitted before they have one."""
        self._clock = clock
        self._draw = draw or random.Random()
        self._stood_still_within = stood_still_within
        self._replicas: dict[str, Replica] = {}
        self._gone: set[str] = set()
        """Addresses that discovery no longer names; their replicas only finish their streams."""
        self._leases: dict[SlotLease, None] = {}
        """Slots that this process's streams have, in the order of asking."""

    @property
    def addresses(self) -> list[str]:
        """The addresses of all replicas, also of those that only finish their streams."""
        return list(self._replicas)

    @property
    def is_ready(self) -> bool:
        """Whether any replica is known to take streams."""
        return any(replica.state is ReplicaState.READY for replica in self._replicas.values())

    @property
    def rescue_s(self) -> float:
        """Seconds that a stream which has lost its replica may stand still; an only one takes time to start again."""
        settings = self.settings
        is_only = len(self._replicas) <= 1
        return max(settings.failover_s, settings.restart_wait_s) if is_only else settings.failover_s

    def snapshot(self) -> tuple[Replica, ...]:
        """Return all replicas; scrapers call this from their own threads."""
        return tuple(self._replicas.values())

    def state_of(self, address: str) -> ReplicaState | None:
        """Return whether a replica may get streams; None if there is no replica at that address."""
        replica = self._replicas.get(address)
        return None if replica is None else replica.state

    def set_replicas(self, found: Collection[str]) -> None:
        """Take over the addresses that discovery found; a replica that is gone finishes its streams first."""
        for address in found:
            if address not in self._replicas:
                self._replicas[address] = Replica(self.service, address, self.settings, self._clock)
        self._gone = set(self._replicas) - set(found)
        for replica in self.snapshot():
            replica.is_listed = replica.address in found
            self._forget_if_gone(replica)
        self.on_room()

    def reported(self, address: str, report: LoadReport) -> None:
        """Take over what a replica said of itself."""
        if (replica := self._replicas.get(address)) is not None:
            replica.reported(report)
            self.on_room()

    def note_failure(self, address: str, why: str, kind: FailureKind = FailureKind.WRONG) -> None:
        """Note that a probe or a stream failed through a replica's fault; streams of one that is ejected are told.

        Slowness is no failure while the replica works for others, or if our own event loop stood still. The streams of
        an ejected replica stay where they are if there is no other one to go to.
        """
        replica = self._replicas.get(address)
        if replica is None:
            return
        if kind is FailureKind.GONE:
            replica.begin_life()
        patience_s = replica.patience_s
        is_excused = kind is FailureKind.SLOW and (
            replica.progressed_within(patience_s) or self._stood_still_within(patience_s)
        )
        if replica.failed(why, is_excused) and self.has_other(than=frozenset((address,))):
            for slot in list(self._leases):
                if slot.address == address and slot.on_ejected is not None:
                    slot.on_ejected()

    def usable(self) -> list[Replica]:
        """Return the replicas that may get streams if they have room: ready ones, else those not yet probed."""
        for state in (ReplicaState.READY, ReplicaState.UNKNOWN):
            if usable := [replica for replica in self._replicas.values() if replica.state is state]:
                return usable
        return []

    def choose(self, avoid: frozenset[str] = NOBODY) -> Replica | None:
        """Return the replica for a call that needs no slot, one of `avoid` last; None if none can be had."""
        return self._least_loaded(self.usable(), avoid)

    def lease(
        self, avoid: frozenset[str] = NOBODY, spared: frozenset[ReplicaLife] = NOWHERE, ignores_limit: bool = False
    ) -> SlotLease | None:
        """Take a slot at the least loaded replica that has one; None if all are full.

        Args:
            avoid: replicas that come last, because they just failed or refused the stream.
            spared: places that the stream must not come back to.
            ignores_limit: also at a replica that seems full, as it may admit the stream nevertheless.
        """
        usable = [replica for replica in self.usable() if replica.life not in spared]
        with_room = [replica for replica in usable if replica.free_slots != 0]
        replica = self._least_loaded(with_room or (usable if ignores_limit else []), avoid)
        if replica is None:
            return None
        replica.take()
        slot = SlotLease(self, replica)
        self._leases[slot] = None
        return slot

    def ended(self, slot: SlotLease, is_whole: bool, is_full: bool) -> None:
        """Take a slot back, once; see `SlotLease.end`."""
        del self._leases[slot]
        slot.replica.give_back(is_whole)
        if is_full:
            slot.replica.refused()
        self._forget_if_gone(slot.replica)
        self.on_room()

    @contextmanager
    def looked(self, counts: bool = True) -> Iterator[None]:
        """Count one stream more in `looking`, if it `counts`."""
        self.looking += counts
        try:
            yield
        finally:
            self.looking -= counts

    @contextmanager
    def unslotted_call(self, replica: Replica) -> Iterator[None]:
        """Count a call that needs no slot: a replica that discovery drops meanwhile is not forgotten before its end."""
        replica.unslotted_calls += 1
        try:
            yield
        finally:
            replica.unslotted_calls -= 1
            self._forget_if_gone(replica)

    @property
    def open_streams(self) -> int:
        """Streams that this process has open at all replicas."""
        return sum(replica.open_streams for replica in self._replicas.values())

    def free_slots(self) -> float:
        """Count the free slots of the replicas that may get streams; inf if that is unknown."""
        free = [replica.free_slots for replica in self.usable()]
        return math.inf if not free or None in free else sum(slots or 0 for slots in free)

    def has_other(self, than: frozenset[str]) -> bool:
        """Tell whether any replica can be had beside those."""
        return any(replica.address not in than for replica in self.usable())

    def next_end_s(self) -> float:
        """Expect the seconds until a stream ends that leaves room for another one, at whichever replica."""
        ends_per_s = sum(1.0 / max(replica.next_end_s, LOOK_AGAIN_S) for replica in self.usable())
        return 1.0 / ends_per_s if ends_per_s else self.settings.interval_s

    def overloaded(self, waiting: int = 0) -> OverloadedError:
        """Make the refusal of a stream that found no slot in time.

        Those who are refused together come back at moments spread over the time in which all who wait find slots.
        """
        least_s, all_s = self.settings.interval_s, self.next_end_s() * (waiting + 1)
        retry_s = self._draw.uniform(least_s, min(max(least_s, all_s), 2 * self.settings.failover_s))
        got = f"the {self.service} replicas serve as many streams as they can in time, and {waiting} requests wait"
        return OverloadedError(f"{got}; try again in {retry_s:.0f} s, or add replicas", retry_after_s=retry_s)

    def unavailable(self) -> GatewayError:
        """Make the error of a service of which no replica can be had."""
        told = [
            f"{each.address} is {each.state.value}" + (f" ({each.last_failure})" if each.last_failure else "")
            for each in self._replicas.values()
        ]
        got = f"no {self.service} replica takes work now: {'; '.join(told) or 'none was found'}"
        return _UNAVAILABLE[self.service](f"{got}; start one, or see its log")

    def _forget_if_gone(self, replica: Replica) -> None:
        """Forget a replica that discovery no longer names, unless it still has work of this gateway."""
        if replica.address in self._gone and not replica.open_streams and not replica.unslotted_calls:
            self._replicas.pop(replica.address, None)

    def _least_loaded(self, candidates: list[Replica], avoid: frozenset[str]) -> Replica | None:
        chosen = [replica for replica in candidates if replica.address not in avoid] or candidates
        if len(chosen) > 2 and any(replica.foreign for replica in self._replicas.values()):
            # NOTE: each gateway sees the others' streams only when it probes; all would choose the same replica till
            # then. So each takes the better of two that it draws.
            chosen = self._draw.sample(chosen, 2)
        # NOTE: equal replicas are ranked at random, or all gateways would begin with the same one.
        return min(chosen, key=lambda one: (one.load, one.opened_total, self._draw.random()), default=None)
