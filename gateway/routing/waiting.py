"""How a coroutine waits for what a `Fleet` gives: a slot, or a replica for a call that needs no slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from gateway.errors import GatewayError, LLMUnavailableError, Token2WavUnavailableError
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import Replica, ReplicaLife
from gateway.routing.replicas import NOBODY, NOWHERE
from servicekit.clock import Clock
from servicekit.timeouts import timeout

T = TypeVar("T")

LLM = "llm"
TOKEN2WAV = "token2wav"
LOOK_AGAIN_S = 0.05
_UNAVAILABLE: dict[str, type[GatewayError]] = {LLM: LLMUnavailableError, TOKEN2WAV: Token2WavUnavailableError}


def unavailable(fleet: Fleet) -> GatewayError:
    """Make the error of a service of which no replica can be had."""
    got = f"no {fleet.service} replica takes work now: {fleet.replicas.trouble()}"
    return _UNAVAILABLE[fleet.service](f"{got}; start one, or see its log")


class Coming(Generic[T]):
    """A queue's later answer: one task awaits it; if that task has gone, the answer is given back."""

    def __init__(self, give_back: Callable[[T], None]) -> None:
        """Begin inside the running event loop, without it."""
        self._give_back = give_back
        self._given: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(self, given: T) -> None:
        """Hand it over; the queue calls this once."""
        if self._given.done():
            self._give_back(given)
        else:
            self._given.set_result(given)

    async def within(self, wait_s: float, leave: Callable[[], None]) -> T:
        """Wait for it.

        Args:
            wait_s: longest wait.
            leave: takes the waiting one out of the queue, or it would stand before its own next try.

        Raises:
            asyncio.TimeoutError: it did not come in time.
        """
        try:
            async with timeout(wait_s):
                return await self._given
        except BaseException:
            leave()
            # NOTE: a slot may have been given at the moment when the wait ended.
            if self._given.done() and not self._given.cancelled():
                self._give_back(self._given.result())
            raise


async def wait_for_slot(
    fleet: Fleet,
    priority: int,
    wait_s: float,
    avoid: frozenset[str] = NOBODY,
    is_begun: bool = False,
    spared: frozenset[ReplicaLife] = NOWHERE,
) -> SlotLease:
    """Wait for a stream's slot; see `Fleet.ask`.

    Raises:
        OverloadedError: refused at once, or no slot came free within `wait_s`.
        LLMUnavailableError, Token2WavUnavailableError: no replica could be had within `wait_s`.
    """
    coming = Coming[SlotLease](lambda slot: slot.end(is_whole=False))
    answer = fleet.ask(priority, coming.give, avoid, is_begun, spared)
    if isinstance(answer, SlotLease):
        return answer
    try:
        return await coming.within(wait_s, answer.leave)
    except asyncio.TimeoutError as error:
        raise (fleet.overloaded(priority) if fleet.replicas.choose() is not None else unavailable(fleet)) from error


async def wait_for_replica(fleet: Fleet, wait_s: float, clock: Clock, avoid: frozenset[str] = NOBODY) -> Replica:
    """Wait for a replica for work that needs no slot.

    Raises:
        LLMUnavailableError, Token2WavUnavailableError: none could be had within `wait_s`.
    """
    ends_s = clock.now() + wait_s
    while (replica := fleet.replicas.choose(avoid)) is None:
        if clock.now() >= ends_s:
            raise unavailable(fleet)
        await asyncio.sleep(LOOK_AGAIN_S)
    return replica
