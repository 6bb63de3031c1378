"""What the routers of both services share: their replicas' life, and whose fault an error is.

An error is the request's own, which no replica can help, or the replica's: then another one may go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from gateway import errors
from gateway.routing.discovery import Source
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import ReplicaStatus
from gateway.routing.waiting import wait_for_replica
from gateway.routing.watch import ReplicaClient, Watch, failure_of
from servicekit.clock import Clock

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
"""Longest pause in seconds between two tries of one stream; the pause starts at `FIRST_PAUSE_S` and doubles."""
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


def is_sickness(error: BaseException) -> bool:
    """Say whether the error speaks against the replica's health."""
    return is_replica_fault(error) and not isinstance(error, _HEALTHY)


C = TypeVar("C", bound=ReplicaClient)


class Router(Generic[C]):
    """All replicas of one service: found, probed and closed together."""

    def __init__(
        self,
        fleet: Fleet,
        sources: list[Source],
        make_client: Callable[[str], C],
        clock: Clock,
    ) -> None:
        """Know the replicas that the sources name; `start` finds and probes the others.

        Args:
            fleet: decides who gets a slot.
            sources: find replicas.
            make_client: makes the client of the replica at an address.
            clock: of all deadlines.
        """
        self.fleet = fleet
        self.caller_has_share: Callable[[], bool] = lambda: True
        """Tells whether who begins a stream has its share of streams already; of others, services admit a few more."""
        self._clock = clock
        self._watch = Watch(fleet, sources, make_client)

    def start(self) -> None:
        """Begin to look for replicas and to probe them, inside the running event loop."""
        self._watch.start()

    async def close(self) -> None:
        """Drop all connections; streams under way end."""
        await self._watch.close()

    def snapshot(self) -> tuple[ReplicaStatus, ...]:
        """Return the facts of every replica."""
        return self.fleet.replicas.snapshot()

    async def is_ready(self) -> bool:
        """Tell whether any replica takes work; asks them all if none is known to."""
        if not self.fleet.replicas.is_ready:
            await self._watch.probe_once()
        return self.fleet.replicas.is_ready

    async def look(self) -> None:
        """Ask the replicas how busy they are now, for those who wait."""
        await self._watch.look()

    async def until_usable(self) -> None:
        """Wait for a replica that takes work, but not for long.

        Raises:
            LLMUnavailableError, Token2WavUnavailableError: there is none.
        """
        await wait_for_replica(self.fleet, self.fleet.settings.admission_wait_s, self._clock)


def give_back(slot: SlotLease, error: BaseException | None, is_begun: bool = False) -> None:
    """Give a stream's slot back and tell the fleet what it must know of how it ended.

    Args:
        slot: of the stream.
        error: what ended it; None if it went well.
        is_begun: the stream was open there.
    """
    if isinstance(error, errors.LLMBusyError):
        slot.refuse(error.retry_after_s)
    elif isinstance(error, errors.Token2WavBusyError) and not is_begun:
        slot.refuse()
    elif isinstance(error, errors.Token2WavStoppingError):
        slot.leave_draining()
    elif isinstance(error, errors.GatewayError) and is_sickness(error):
        slot.fail(str(error), failure_of(error))
    else:
        slot.end(is_whole=is_begun)
