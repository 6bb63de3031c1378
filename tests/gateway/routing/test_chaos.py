"""Replicas that die, drain and come back at random while many streams speak: all audio is whole, nothing is left."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from contextlib import aclosing

import numpy as np
import pytest

from gateway.core import Sampling, Utterance
from gateway.errors import LLMInterruptedError
from gateway.llm.routed import RoutedSpeechLM
from gateway.token2wav.routed import RoutedToken2Wav
from tests.gateway.routing.fakes import QUICK, ScriptedLLM, ScriptedToken2Wav, audio_of, chunks, routed, routed_llm

STREAMS, WINDOWS = 40, 12
FAILOVERS, ROUNDS = 8, 5
PATIENT = dataclasses.replace(QUICK, admission_wait_s=30.0, failover_s=30.0, max_failovers=1000)


async def _speak(router: RoutedToken2Wav, voice: str, seed: int, leaves: bool) -> bool:
    """Speak a stream as the pipeline does, three chunks ahead; True if all was heard and right."""
    todo = chunks(WINDOWS)
    async with router.open_stream(voice, seed) as stream:
        pushes = [stream.push(chunk) for chunk in todo[:3]]
        heard = []
        for number in range(WINDOWS):
            heard.append((await pushes[number]).samples)
            if leaves and number == 2:
                return True
            if len(pushes) < WINDOWS:
                pushes.append(stream.push(todo[len(pushes)]))
    return np.array_equal(np.concatenate(heard), np.concatenate([audio_of(chunk, seed) for chunk in todo]))


async def _work(replicas: list[ScriptedToken2Wav], chance: random.Random) -> None:
    while True:
        await _turns(1)
        for replica in replicas:
            for stream in list(replica.open):
                if chance.random() < 0.1:
                    stream.answer(force=1)


async def _turns(count: int) -> None:
    """Let so many turns of work pass: on a slow machine they take longer, and the streams meet as much in them."""
    for _ in range(count):
        await asyncio.sleep(0.001)


async def _misfortune(replicas: list[ScriptedToken2Wav], chance: random.Random) -> None:
    while True:
        victim = chance.choice(replicas)
        await _turns(chance.randrange(10, 50))
        if chance.random() < 0.3:
            victim.is_draining = not victim.is_draining
            continue
        victim.die()
        await _turns(chance.randrange(50))
        victim.voices.clear()
        victim.is_dead = victim.is_draining = False


@pytest.mark.parametrize("seed", range(3))
async def test_streams_survive_whatever_happens_to_their_replicas(seed: int) -> None:
    chance = random.Random(seed)
    replicas = [ScriptedToken2Wav(name, slots=8, answers=0) for name in "abc"]
    async with routed(*replicas, settings=PATIENT) as router:
        voice = (await router.register_voice(b"anna")).voice_id
        world = [asyncio.create_task(_work(replicas, chance)), asyncio.create_task(_misfortune(replicas, chance))]
        for _ in range(ROUNDS):  # chance may spare the streams of one
            speaking = [_speak(router, voice, number, leaves=number % 5 == 0) for number in range(STREAMS)]
            assert all(await asyncio.gather(*speaking))
            if (failovers := sum(status.failovers_total for status in router.snapshot())) >= FAILOVERS:
                break
        for task in world:
            task.cancel()
        await asyncio.gather(*world, return_exceptions=True)
        assert router.fleet.looking == 0
        assert failovers >= FAILOVERS


async def _answer(router: RoutedSpeechLM) -> bool:
    tokens: list[int] = []
    async with aclosing(router.generate(Utterance("text", "", ()), Sampling(), 1)) as deltas:
        async for delta in deltas:
            tokens += delta.token_ids
            await asyncio.sleep(0.001)
    return tokens == list(range(60)) and delta.finish_reason == "stop"


async def test_answers_survive_whatever_happens_to_their_replicas() -> None:
    chance = random.Random(1)
    llms = [ScriptedLLM(name, until_token=60, breaks_after=9, error=LLMInterruptedError("gone")) for name in "abc"]

    async def misfortune() -> None:
        while True:
            await asyncio.sleep(0.02)
            for llm in llms:
                llm.is_dead = chance.random() < 0.4
                llm.breaks_after = chance.randrange(1, 40)

    async with routed_llm(*llms, settings=PATIENT) as router:
        world = asyncio.create_task(misfortune())
        assert all(await asyncio.gather(*(_answer(router) for _ in range(20))))
        world.cancel()
        await asyncio.gather(world, return_exceptions=True)
