"""Keeps a fleet true: follows discovery, probes every replica, owns their clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from gateway.errors import (
    GatewayError,
    LLMDeadlineError,
    LLMUnavailableError,
    Token2WavDeadlineError,
    Token2WavUnavailableError,
)
from gateway.routing.discovery import Found, Source, merged
from gateway.routing.fleet import Fleet
from gateway.routing.health import Failure, ReplicaState
from gateway.routing.replica import LoadReport
from servicekit.tasks import stop

logger = logging.getLogger(__name__)


class ReplicaClient(Protocol):
    """The methods that a client of one replica needs, for either service."""

    async def probe(self) -> LoadReport:
        """Ask how it is.

        Raises:
            GatewayError: it does not answer, or can't work.
        """
        ...

    async def close(self) -> None:
        """Drop its connections."""
        ...


C = TypeVar("C", bound=ReplicaClient)


class Watch(Generic[C]):
    """The replicas of one service and their clients; made and closed by its owner."""

    def __init__(self, fleet: Fleet, sources: list[Source], make_client: Callable[[str], C]) -> None:
        """Take the addresses that the sources know already; send no request yet."""
        self.fleet = fleet
        self._sources = sources
        self._make_client = make_client
        self._clients: dict[str, C] = {}
        self._probers: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        fleet.set_replicas({address: may for source in sources for address, may in source.known.items()})

    def client(self, address: str) -> C:
        """Return the client of one replica."""
        if address not in self._clients:
            self._clients[address] = self._make_client(address)
        return self._clients[address]

    def start(self) -> None:
        """Begin to follow and to probe, inside the running event loop."""
        self._probe_all()
        found = [source.known for source in self._sources]
        following = merged(found, self._sources, self._found)
        self._following = asyncio.create_task(following, name=f"{self.fleet.service}-discovery")

    async def close(self) -> None:
        """Stop both and close every client."""
        await stop(*self._probers.values(), *([self._following] if self._following is not None else []))
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    async def probe_once(self) -> None:
        """Look at every replica now."""
        await asyncio.gather(*(self._probe(address) for address in self.fleet.replicas.addresses))

    async def look(self) -> None:
        """Take over how busy the replicas are now; one that does not answer is left to the probes."""
        await asyncio.gather(*(self._look(replica.address) for replica in self.fleet.replicas.usable()))

    async def _look(self, address: str) -> None:
        with suppress(GatewayError):
            self.fleet.reported(address, await self.client(address).probe())

    def _found(self, found: Found) -> None:
        before = set(self.fleet.replicas.addresses)
        self.fleet.set_replicas(found)
        if set(self.fleet.replicas.addresses) != before:
            logger.info("%s replicas: %s", self.fleet.service, ", ".join(sorted(found)) or "none")
        self._probe_all()

    def _probe_all(self) -> None:
        for address in self.fleet.replicas.addresses:
            if address not in self._probers:
                task = asyncio.create_task(self._keep_probing(address), name=f"probe-{address}")
                self._probers[address] = task

    async def _keep_probing(self, address: str) -> None:
        try:
            while address in self.fleet.replicas.addresses:
                await self._probe(address)
                await asyncio.sleep(self.fleet.settings.probe_interval_s)
        finally:
            del self._probers[address]
        client = self._clients.pop(address, None)
        if client is not None:
            await client.close()

    async def _probe(self, address: str) -> None:
        before = self.fleet.replicas.state_of(address)
        try:
            self.fleet.reported(address, await self.client(address).probe())
        except GatewayError as error:
            self.fleet.note_failure(address, str(error), failure_of(error))
        except Exception as error:
            logger.exception("probe of %s failed", address)
            self.fleet.note_failure(address, repr(error))
        self._tell_change(address, before)

    def _tell_change(self, address: str, before: ReplicaState | None) -> None:
        now = self.fleet.replicas.state_of(address)
        if now is not before and now is not None:
            level = logging.WARNING if now is ReplicaState.EJECTED else logging.INFO
            logger.log(level, "%s replica %s is %s", self.fleet.service, address, now.value)


def failure_of(error: GatewayError) -> Failure:
    """Say what kind of failure of a replica an error is."""
    if isinstance(error, (LLMDeadlineError, Token2WavDeadlineError)):
        return Failure.SLOW
    is_gone = isinstance(error, (LLMUnavailableError, Token2WavUnavailableError))
    return Failure.GONE if is_gone else Failure.WRONG
