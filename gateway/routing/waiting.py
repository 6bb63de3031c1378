"""How a coroutine waits for a slot of a `Fleet`, or for a replica for a call that needs no slot."""

from __future__ import annotations

import asyncio

from gateway.errors import GatewayError, LLMUnavailableError, Token2WavUnavailableError
from gateway.routing.fleet import Fleet, SlotLease
from gateway.routing.replica import Replica, ReplicaLife
from gateway.routing.replicas import NOBODY, NOWHERE
from servicekit.clock import Clock

LLM = "llm"
TOKEN2WAV = "token2wav"
LOOK_AGAIN_S = 0.05
_UNAVAILABLE: dict[str, type[GatewayError]] = {LLM: LLMUnavailableError, TOKEN2WAV: Token2WavUnavailableError}


def unavailable(fleet: Fleet) -> GatewayError:
    """Make the error of a service of which no replica can be had."""
    got = f"no {fleet.service} replica takes work now: {fleet.replicas.trouble()}"
    return _UNAVAILABLE[fleet.service](f"{got}; start one, or see its log")


async def wait_for_slot(
    fleet: Fleet,
    wait_s: float,
    clock: Clock,
    avoid: frozenset[str] = NOBODY,
    spared: frozenset[ReplicaLife] = NOWHERE,
    ignores_limit: bool = False,
) -> SlotLease:
    """Wait for the slot of a stream that was admitted or is under way; see `Fleet.lease`.

    Raises:
        OverloadedError: no slot came free within `wait_s`.
        LLMUnavailableError, Token2WavUnavailableError: no replica could be had within `wait_s`.
    """
    if (slot := fleet.lease(avoid, spared, ignores_limit)) is not None:
        return slot
    ends_s = clock.now() + wait_s
    # NOTE: a stream that waits for the next life of a place has nobody wait for it.
    with fleet.looked(not spared):
        while (slot := fleet.lease(avoid, spared, ignores_limit)) is None:
            if clock.now() >= ends_s:
                raise fleet.overloaded() if fleet.replicas.choose() is not None else unavailable(fleet)
            await asyncio.sleep(LOOK_AGAIN_S)
        return slot


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
