"""What the routers of both services share: finding, probing and waiting for replicas, and whose fault an error is.

An error is the request's own, which no replica can help, or the replica's: then another one may go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from gateway import errors
from gateway.routing.discovery import Places, follow
from gateway.routing.fleet import NOBODY, NOWHERE, Fleet, SlotLease
from gateway.routing.replica import LOOK_AGAIN_S, FailureKind, LoadReport, Replica, ReplicaLife, ReplicaState
from servicekit.clock import Clock
from servicekit.tasks import stop

logger = logging.getLogger(__name__)

REPLICA_FAULTS: tuple[type[errors.GatewayError], ...] = (
    errors.Token2WavUnavailableError,
    errors.Token2WavInterruptedError,
    errors.Token2WavDeadlineError,
    errors.Token2WavFailedError,
    errors.Token2WavProtocolError,
    errors.LLMUnavailableError,
    errors.LLMInterruptedError,
    errors.LLMDeadlineError,
    errors.LLMFailedError,
    errors.LLMProtocolError,
)
"""Errors after which another replica, or the same one later, may succeed."""
_HEALTHY = (errors.Token2WavStoppingError, errors.StreamLostError, errors.LLMBusyError)
"""Errors of a replica that works: it is stopping, had to end this one stream, or has too much to do."""


def is_replica_fault(error: BaseException) -> bool:
    """Say whether the stream may go on elsewhere."""
    return isinstance(error, REPLICA_FAULTS)


def failure_of(error: BaseException | None) -> FailureKind | None:
    """Say what kind of failure of a replica an error is; None if it does not speak against the replica's health."""
    if error is None or not is_replica_fault(error) or isinstance(error, _HEALTHY):
        return None
    if isinstance(error, (errors.LLMDeadlineError, errors.Token2WavDeadlineError)):
        return FailureKind.SLOW
    is_gone = isinstance(error, (errors.LLMUnavailableError, errors.Token2WavUnavailableError))
    return FailureKind.GONE if is_gone else FailureKind.WRONG


def give_back(slot: SlotLease, error: BaseException | None, is_begun: bool = False) -> None:
    """Give a stream's slot back and tell the fleet what it must know of how it ended.

    Args:
        error: what ended it; None if it went well.
        is_begun: the stream was open there.
    """
    if isinstance(error, errors.LLMBusyError):
        slot.refuse(error.retry_after_s)
    elif isinstance(error, errors.Token2WavBusyError) and not is_begun:
        slot.refuse()
    elif isinstance(error, errors.Token2WavStoppingError):
        slot.leave_draining()
    elif (kind := failure_of(error)) is not None:
        slot.fail(str(error), kind)
    else:
        slot.end(is_whole=is_begun)


class ReplicaClient(Protocol):
    """The methods that a client of one replica needs, for either service."""

    async def probe(self) -> LoadReport:
        """Ask how it is; raises GatewayError if it does not answer, or can't work."""

    async def close(self) -> None:
        """Drop its connections."""


C = TypeVar("C", bound=ReplicaClient)


class Router(Generic[C]):
    """All replicas of one service and their clients: found, probed and closed together."""

    def __init__(self, fleet: Fleet, places: Places, make_client: Callable[[str], C], clock: Clock) -> None:
        """Know the replicas that are listed; `start` finds and probes the others."""
        self.fleet = fleet
        self.snapshot = fleet.snapshot
        self.caller_has_share: Callable[[], bool] = lambda: True
        """Tells whether who begins a stream has its share of streams already; of others, services admit a few more."""
        self._clock = clock
        self._places = places
        self._make_client = make_client
        self._clients: dict[str, C] = {}
        self._probers: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        fleet.set_replicas(places.listed)

    def start(self) -> None:
        """Begin to look for replicas and to probe them, inside the running event loop."""
        self._probe_all()
        following = follow(self._places, self._found, self.fleet.settings.interval_s)
        self._following = asyncio.create_task(following, name=f"{self.fleet.service}-discovery")

    async def close(self) -> None:
        """Drop all connections; streams under way end."""
        await stop(*self._probers.values(), *([self._following] if self._following is not None else []))
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    def client(self, address: str) -> C:
        """Return the client of one replica."""
        if address not in self._clients:
            self._clients[address] = self._make_client(address)
        return self._clients[address]

    async def is_ready(self) -> bool:
        """Tell whether any replica takes work; asks them all if none is known to."""
        if not self.fleet.is_ready:
            await asyncio.gather(*map(self._probe, self.fleet.addresses))
        return self.fleet.is_ready

    async def look(self) -> None:
        """Ask the replicas how busy they are now, for those who wait; silent ones are left to the probes."""

        async def look(address: str) -> None:
            with suppress(errors.GatewayError):
                self.fleet.reported(address, await self.client(address).probe())

        await asyncio.gather(*(look(replica.address) for replica in self.fleet.usable()))

    async def wait_for_slot(
        self,
        wait_s: float,
        avoid: frozenset[str] = NOBODY,
        spared: frozenset[ReplicaLife] = NOWHERE,
        ignores_limit: bool = False,
    ) -> SlotLease:
        """Wait for the slot of a stream that was admitted or is under way; see `Fleet.lease`.

        Raises:
            OverloadedError: no slot came free within `wait_s`.
            LLMUnavailableError, Token2WavUnavailableError: no replica could be had within `wait_s`.
        """
        fleet, ends_s = self.fleet, self._clock.now() + wait_s
        if (slot := fleet.lease(avoid, spared, ignores_limit)) is not None:
            return slot
        # NOTE: a stream that waits for the next life of a place has nobody wait for it.
        with fleet.looked(not spared):
            while (slot := fleet.lease(avoid, spared, ignores_limit)) is None:
                if self._clock.now() >= ends_s:
                    raise fleet.overloaded() if fleet.choose() is not None else fleet.unavailable()
                await asyncio.sleep(LOOK_AGAIN_S)
            return slot

    async def wait_for_replica(self, wait_s: float | None = None, avoid: frozenset[str] = NOBODY) -> Replica:
        """Wait for a replica for work that needs no slot; by default as long as a request waits for its turn.

        Raises:
            LLMUnavailableError, Token2WavUnavailableError: none could be had in time.
        """
        ends_s = self._clock.now() + (self.fleet.settings.admission_wait_s if wait_s is None else wait_s)
        while (replica := self.fleet.choose(avoid)) is None:
            if self._clock.now() >= ends_s:
                raise self.fleet.unavailable()
            await asyncio.sleep(LOOK_AGAIN_S)
        return replica

    def _found(self, found: Collection[str]) -> None:
        before = self.fleet.addresses
        self.fleet.set_replicas(found)
        if self.fleet.addresses != before:
            logger.info("%s replicas: %s", self.fleet.service, ", ".join(sorted(found)) or "none")
        self._probe_all()

    def _probe_all(self) -> None:
        for address in self.fleet.addresses:
            if address not in self._probers:
                task = asyncio.create_task(self._keep_probing(address), name=f"probe-{address}")
                self._probers[address] = task

    async def _keep_probing(self, address: str) -> None:
        try:
            while address in self.fleet.addresses:
                await self._probe(address)
                await asyncio.sleep(self.fleet.settings.interval_s)
        finally:
            del self._probers[address]
        if (client := self._clients.pop(address, None)) is not None:
            await client.close()

    async def _probe(self, address: str) -> None:
        before = self.fleet.state_of(address)
        try:
            self.fleet.reported(address, await self.client(address).probe())
        except errors.GatewayError as error:
            self.fleet.note_failure(address, str(error), failure_of(error) or FailureKind.WRONG)
        except Exception as error:
            logger.exception("probe of %s failed", address)
            self.fleet.note_failure(address, repr(error))
        if (now := self.fleet.state_of(address)) is not before and now is not None:
            level = logging.WARNING if now is ReplicaState.EJECTED else logging.INFO
            logger.log(level, "%s replica %s is %s", self.fleet.service, address, now.value)
