"""How a coroutine waits for what a `Fleet` gives: a slot, or a replica for a call that needs no slot."""

from __future__ import annotations

import asyncio

from gateway.errors import GatewayError, LLMUnavailableError, Token2WavUnavailableError
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import Place, Replica
from gateway.routing.replicas import NOBODY, NOWHERE
from servicekit.clock import Clock
from servicekit.timeouts import timeout

LLM = "llm"
TOKEN2WAV = "token2wav"
_LOOK_AGAIN_S = 0.05
_UNAVAILABLE: dict[str, type[GatewayError]] = {LLM: LLMUnavailableError, TOKEN2WAV: Token2WavUnavailableError}


def unavailable(fleet: Fleet) -> GatewayError:
    """Make the error of a service of which no replica can be had."""
    got = f"no {fleet.service} replica takes work now: {fleet.replicas.trouble()}"
    return _UNAVAILABLE[fleet.service](f"{got}; start one, or see its log")


async def wait_for_slot(
    fleet: Fleet,
    priority: int,
    wait_s: float,
    avoid: frozenset[str] = NOBODY,
    is_begun: bool = False,
    spared: frozenset[Place] = NOWHERE,
) -> SlotLease:
    """Wait for a stream's slot; see `Fleet.ask`.

    Raises:
        OverloadedError: refused at once, or no slot came free within `wait_s`.
        LLMUnavailableError, Token2WavUnavailableError: no replica could be had within `wait_s`.
    """
    coming: asyncio.Future[SlotLease] = asyncio.get_running_loop().create_future()

    def on_leased(slot: SlotLease) -> None:
        if coming.done():
            slot.end(is_whole=False)
        else:
            coming.set_result(slot)

    answer = fleet.ask(priority, on_leased, avoid, is_begun, spared)
    if isinstance(answer, SlotLease):
        return answer
    try:
        async with timeout(wait_s):
            return await coming
    except BaseException as error:
        # NOTE: a stream that waits no longer leaves the queue, or it would stand before its own next try.
        answer.leave()
        # NOTE: a slot may have come together with the end of the wait.
        if coming.done() and not coming.cancelled():
            coming.result().end(is_whole=False)
        if isinstance(error, asyncio.TimeoutError):
            raise (fleet.overloaded(priority) if fleet.replicas.choose() is not None else unavailable(fleet)) from error
        raise


async def wait_for_replica(fleet: Fleet, wait_s: float, clock: Clock, avoid: frozenset[str] = NOBODY) -> Replica:
    """Wait for a replica for work that needs no slot.

    Raises:
        LLMUnavailableError, Token2WavUnavailableError: none could be had within `wait_s`.
    """
    ends_s = clock.now() + wait_s
    while (replica := fleet.replicas.choose(avoid)) is None:
        if clock.now() >= ends_s:
            raise unavailable(fleet)
        await asyncio.sleep(_LOOK_AGAIN_S)
    return replica
