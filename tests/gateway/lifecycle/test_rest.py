"""When the gateway gives freed memory back to the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat

import pytest

from demo_voice.unpack import VOICES
from gateway.app import open_gateway
from gateway.config import GatewayConfig
from gateway.lifecycle.shutdown import GROWTH_BYTES, LOOKS_OF_REST, return_memory_at_rest
from servicekit.tasks import running_meanwhile
from servicekit.timeouts import timeout
from tests.workers import random_checkpoint

PATIENCE_S = 10.0


def looking_at(streams: Iterator[int], looks: list[int]) -> Callable[[], int]:
    def speaking() -> int:
        looks.append(next(streams))
        return looks[-1]

    return speaking


@pytest.mark.parametrize("busy", [[], [1], [0] * (LOOKS_OF_REST - 1) + [2], [3, 2, 0, 1]])
async def test_memory_goes_back_after_every_few_looks_at_which_nobody_spoke(busy: list[int]) -> None:
    loop, looks, at_look, is_enough = asyncio.get_running_loop(), list[int](), list[int](), asyncio.Event()

    def give_back() -> None:
        at_look.append(len(looks))
        if len(at_look) == 2:
            loop.call_soon_threadsafe(is_enough.set)

    speaking = looking_at(chain(busy, repeat(0)), looks)
    async with running_meanwhile(return_memory_at_rest(speaking, give_back, look_interval_s=0.0)):
        await asyncio.wait_for(is_enough.wait(), PATIENCE_S)
    assert at_look[:2] == [len(busy) + LOOKS_OF_REST, len(busy) + 2 * LOOKS_OF_REST]


async def test_nothing_goes_back_while_somebody_speaks() -> None:
    looks, given_back = list[int](), list[int]()
    streams = chain(*repeat([0] * (LOOKS_OF_REST - 1) + [1], 10), repeat(1))
    rest = return_memory_at_rest(looking_at(streams, looks), lambda: given_back.append(len(looks)), look_interval_s=0.0)
    async with running_meanwhile(rest):
        while len(looks) < 20 * LOOKS_OF_REST:
            await asyncio.sleep(0)
    assert given_back == []


async def test_much_goes_back_although_somebody_speaks() -> None:
    held, seen, given_back = 100, list[int](), list[int]()

    def resident() -> int:
        seen.append(held)
        return held

    def give_back() -> None:
        nonlocal held
        given_back.append(held)
        held = 120

    rest = return_memory_at_rest(lambda: 1, give_back, look_interval_s=0.0, resident=resident)
    async with running_meanwhile(rest), timeout(PATIENCE_S):
        for grown in (90, 90 + GROWTH_BYTES, 91 + GROWTH_BYTES, 120 + GROWTH_BYTES, 121 + GROWTH_BYTES):
            held = grown
            seen.clear()
            while seen.count(held) < 3:
                await asyncio.sleep(0)
    assert given_back == [91 + GROWTH_BYTES, 121 + GROWTH_BYTES]


@pytest.mark.slow
async def test_an_open_gateway_gives_memory_back(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, is_given_back = asyncio.get_running_loop(), asyncio.Event()
    rest = partial(
        return_memory_at_rest, give_back=lambda: loop.call_soon_threadsafe(is_given_back.set), look_interval_s=0.0
    )
    monkeypatch.setattr("gateway.app.return_memory_at_rest", rest)
    async with open_gateway(GatewayConfig(random_checkpoint(tmp_path_factory) / "llm", VOICES)):
        await asyncio.wait_for(is_given_back.wait(), PATIENCE_S)
