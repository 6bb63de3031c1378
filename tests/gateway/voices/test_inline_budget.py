"""Voices that come with requests: how many new ones a caller may bring, how large, and how many are made at once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from gateway.access.caller import Caller, calling
from gateway.core import FloatArray, InlineVoice, RegisteredVoice
from gateway.dialects.answers import error_headers
from gateway.errors import VoiceRateError, wire_status
from gateway.ledger import CallerLedger
from gateway.voices.inline_budget import InlineVoiceBudget
from gateway.voices.registry import VoiceRegistry
from tests.gateway.fakes import FakeToken2Wav, ManualClock


class World:
    """A registry with a budget, and who asks it now."""

    def __init__(self, token2wav: FakeToken2Wav | None = None, **limits: int) -> None:
        self.clock = ManualClock()
        self.caller = "loud"
        self.token2wav = token2wav or FakeToken2Wav()
        budget = InlineVoiceBudget(CallerLedger(self.clock))
        vars(budget).update(limits)
        self.registry = VoiceRegistry(self.token2wav, budget=budget)

    async def bring(self, number: int, seconds: float = 1.0) -> None:
        samples = np.full(int(seconds * 16_000), number / 1000, np.float32)
        with calling(Caller(self.caller)):
            await self.registry.resolve(InlineVoice(samples))


async def test_a_caller_brings_so_many_new_voices_a_minute_and_others_theirs() -> None:
    world = World(voices_per_minute=3)
    for number in range(3):
        await world.bring(number)
        world.clock.seconds += 10.0
    with pytest.raises(VoiceRateError) as refusal:
        await world.bring(3)
    assert (wire_status(refusal.value).http, error_headers(refusal.value)["retry-after"]) == (429, "30")
    assert len(world.token2wav.registrations) == 3
    world.caller = "quiet"
    await world.bring(4)
    world.caller = "loud"
    world.clock.seconds += 30.0
    await world.bring(3)
    with pytest.raises(VoiceRateError):
        await world.bring(5)


async def test_a_voice_that_is_known_already_counts_for_nothing() -> None:
    world = World(voices_per_minute=1)
    for _ in range(5):
        await world.bring(1)
    assert len(world.token2wav.registrations) == 1


async def test_recordings_have_a_budget_of_bytes_and_the_largest_may_come_alone() -> None:
    second = 4 * 16_000
    world = World(bytes_per_minute=10 * second)
    await world.bring(1, seconds=20.0)
    with pytest.raises(VoiceRateError) as refusal:
        await world.bring(2, seconds=0.1)
    assert refusal.value.retry_after_s == 60.0
    world.clock.seconds += 60.0
    for number in range(3, 6):
        await world.bring(number, seconds=3.0)
    with pytest.raises(VoiceRateError):
        await world.bring(6, seconds=3.0)


async def test_the_voices_of_one_caller_are_made_one_after_the_other_and_others_come_in_between() -> None:
    made = SlowMaker()
    world = World(made)
    asked = [asyncio.create_task(world.bring(number)) for number in range(4)]
    await asyncio.sleep(0)
    world.caller = "quiet"
    asked.append(asyncio.create_task(world.bring(5)))
    await asyncio.sleep(0.01)
    assert made.under_way == 2
    made.may_end.set()
    await asyncio.gather(*asked)
    assert (made.most_under_way, len(made.registrations)) == (2, 5)


class SlowMaker(FakeToken2Wav):
    """Makes voices until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.under_way = self.most_under_way = 0

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        await self.may_end.wait()
        self.under_way -= 1
        return await super().register_voice(audio)
