"""Keeps the replicas of one service, and chooses the least loaded one for the next stream. Pure.

Knows nothing of who waits for a slot.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.routing.health import ReplicaState
from gateway.routing.replica import Replica, ReplicaLife, ReplicaStatus
from gateway.routing.settings import RoutingSettings
from servicekit.clock import Clock

NOBODY: frozenset[str] = frozenset()
NOWHERE: frozenset[ReplicaLife] = frozenset()
CHOICES_BESIDE_OTHERS = 2
"""Replicas drawn at random for one stream, the better of which is taken, where other gateways use them too: each sees
the others' streams only when it probes, and all would choose the same replica until then."""

_SHORTEST_S = 1e-3
"""Shortest time between two ends of streams that is believed."""


class ReplicaSet:
    """All replicas of one service."""

    def __init__(
        self, service: str, settings: RoutingSettings, clock: Clock, draw: random.Random | None = None
    ) -> None:
        """Begin without replicas; the arguments are those of `Fleet`."""
        self._service = service
        self._settings = settings
        self._clock = clock
        self._draw = draw or random.Random()
        self._replicas: dict[str, Replica] = {}
        self._gone: set[str] = set()
        """Addresses that discovery no longer names; their replicas only finish their streams."""

    @property
    def addresses(self) -> list[str]:
        """The addresses of all replicas, also of those that only finish their streams."""
        return list(self._replicas)

    @property
    def is_ready(self) -> bool:
        """Whether any replica is known to take streams."""
        return any(replica.state is ReplicaState.READY for replica in self._replicas.values())

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica."""
        # NOTE: a copy of the list, as scrapers call this from their own threads.
        return tuple(replica.status() for replica in list(self._replicas.values()))

    def find(self, address: str) -> Replica | None:
        """Return the replica at an address; None if there is none."""
        return self._replicas.get(address)

    def state_of(self, address: str) -> ReplicaState | None:
        """Return whether a replica may get streams; None if there is no replica at that address."""
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

    def update(self, found: Mapping[str, bool]) -> None:
        """Take over what discovery found: address -> whether it may get new streams.

        One that is gone finishes its streams and is forgotten then.
        """
        for address in found:
            if address not in self._replicas:
                self._replicas[address] = Replica(self._service, address, self._settings, self._clock)
        self._gone = set(self._replicas) - set(found)
        for address, replica in list(self._replicas.items()):
            replica.health.set_listed(found.get(address, False))
            self.forget_if_gone(replica)

    def forget_if_gone(self, replica: Replica) -> None:
        """Forget a replica that discovery no longer names, unless it still has work of this gateway."""
        if replica.address in self._gone and not replica.ours and not replica.unslotted_calls:
            self._replicas.pop(replica.address, None)

    def usable(self) -> list[Replica]:
        """Return the replicas that may get streams if they have room: ready ones, else those not yet probed."""
        for state in (ReplicaState.READY, ReplicaState.UNKNOWN):
            if usable := [replica for replica in self._replicas.values() if replica.state is state]:
                return usable
        return []

    def choose(self, avoid: frozenset[str] = NOBODY) -> Replica | None:
        """Return the replica for a call that needs no slot; None if none can be had.

        Args:
            avoid: addresses of replicas that come last.
        """
        return self._first(self.usable(), avoid)

    def choose_with_room(
        self,
        avoid: frozenset[str] = NOBODY,
        spared: frozenset[ReplicaLife] = NOWHERE,
        ignores_limit: bool = False,
    ) -> Replica | None:
        """Return the least loaded replica with a free slot; None if all are full.

        Args:
            avoid: addresses of replicas that come last.
            spared: places that are not taken at all.
            ignores_limit: of full ones too, if all are.
        """
        usable = [replica for replica in self.usable() if replica.life not in spared]
        with_room = [replica for replica in usable if replica.free_slots != 0]
        return self._first(with_room or (usable if ignores_limit else []), avoid)

    @property
    def ours(self) -> int:
        """Streams that this process has open at all replicas."""
        return sum(replica.ours for replica in self._replicas.values())

    def free_slots(self) -> float:
        """Count the free slots of the replicas that may get streams; inf if that is unknown."""
        free = [replica.free_slots for replica in self.usable()]
        return math.inf if not free or None in free else sum(slots or 0 for slots in free)

    def next_end_s(self) -> float:
        """Expect the seconds until a stream ends that leaves room for another one, at whichever replica."""
        ends_per_s = sum(1.0 / max(replica.next_end_s, _SHORTEST_S) for replica in self.usable())
        return 1.0 / ends_per_s if ends_per_s else 1.0

    def has_other(self, than: frozenset[str]) -> bool:
        """Tell whether any replica can be had beside those."""
        return any(replica.address not in than for replica in self.usable())

    @contextmanager
    def unslotted_call(self, replica: Replica) -> Iterator[None]:
        """Count a call that needs no slot: a replica that discovery drops meanwhile is not forgotten before its end."""
        replica.unslotted_calls += 1
        try:
            yield
        finally:
            replica.unslotted_calls -= 1
            self.forget_if_gone(replica)

    def _first(self, candidates: list[Replica], avoid: frozenset[str]) -> Replica | None:
        """Return the least loaded of those looked at; one to avoid only if there are no others."""
        chosen = [replica for replica in candidates if replica.address not in avoid] or candidates
        if len(chosen) > CHOICES_BESIDE_OTHERS and any(replica.foreign for replica in self._replicas.values()):
            chosen = self._draw.sample(chosen, CHOICES_BESIDE_OTHERS)
        # NOTE: equal replicas are ranked at random, or all gateways would begin with the same one.
        return min(chosen, key=lambda one: (one.load, one.opened_total, self._draw.random()), default=None)
