"""More requests than the services can serve: who is let in, who is refused and told when to come back; virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.routing.replica import RoutingSettings
from lab.load.storms import QUIET_EVERY_S, Callers, Tally
from lab.tests.load.virtual_storm import BatchingWorker, Storm, percentile, stormy
from servicekit.stream_limit import COLD_STREAMS
from tests.virtual_time import ManualClock, run_virtually
from tests.workers import is_whole

SPEECH_S = 8.0
WARM_UP = 3
CAPACITY = 20.0
SERVICES = ("llm", "token2wav")


async def _warm_up(storm: Storm) -> None:
    for _ in range(WARM_UP):
        await storm.ask()
    storm.spoken.clear()
    storm.token2wav.opened = 0


@pytest.mark.slow
@pytest.mark.parametrize("slow", SERVICES)
@pytest.mark.parametrize("slots", [64, 400])
def test_of_300_at_once_a_cold_gateway_admits_few_and_speaks_all_of_them_to_the_end(
    tmp_path: Path, slow: str, slots: int
) -> None:
    capacity = 10.0

    async def run(clock: ManualClock) -> None:
        llm_capacity, token2wav_capacity = (capacity if each == slow else 1000.0 for each in SERVICES)
        async with stormy(clock, tmp_path, llm_capacity, token2wav_capacity, slots) as storm:
            await _warm_up(storm)
            await asyncio.gather(*(storm.ask() for _ in range(300)))
            storm.check()
            assert capacity / 2 <= len(storm.admitted) <= 1.11 * COLD_STREAMS
            assert all(one.retry_s is not None and one.retry_s >= 1.0 for one in storm.refused)

    run_virtually(run)


@pytest.mark.parametrize("times", [1, 4, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_under_any_load_the_services_do_most_of_what_they_can_and_nobody_waits_for_long(
    tmp_path: Path, times: int
) -> None:
    capacity, lasts_s = 20.0, 60.0 if is_whole() else 24.0

    async def run(clock: ManualClock) -> None:
        async with stormy(clock, tmp_path, llm_capacity=capacity, slots=64) as storm:
            await _warm_up(storm)
            began_s = clock.now()
            every_s = SPEECH_S / capacity / times
            await storm.arrive(int(lasts_s / every_s), every_s)
            took_s = clock.now() - began_s
            storm.check()
            assert len(storm.admitted) * SPEECH_S / capacity >= 0.8 * lasts_s
            assert took_s < lasts_s + 3 * SPEECH_S
            assert percentile([one.first_s or 0.0 for one in storm.admitted], 95) < 6.0

    run_virtually(run)


@dataclass
class Passed:
    """A storm of callers who ask again and again."""

    loud: Tally
    quiet: Tally
    lasted_s: float


async def _pass(clock: ManualClock, folder: Path, times: int, has_quiet: bool = False) -> Passed:
    """Let callers ask again as soon as they were heard, or when they were told to; the services were busy before."""
    async with stormy(clock, folder, llm_capacity=CAPACITY, tokens=125, slots=64) as storm:
        await _warm_up(storm)
        await Callers(storm.say, "loud", clock.now() + 12.0, clock=clock).flood(int(CAPACITY))
        storm.token2wav.opened = 0
        lasts_s = 60.0 if is_whole() else 24.0
        loud = Callers(storm.say, "loud", clock.now() + lasts_s, clock=clock)
        other = Callers(storm.say, "quiet", clock.now() + lasts_s, clock)
        calls = [loud.flood(int(times * CAPACITY))] + ([other.arrive(QUIET_EVERY_S)] if has_quiet else [])
        await asyncio.gather(*calls)
        assert (storm.token2wav.open, storm.gate.speaking, storm.gate.waiting) == (0, 0, 0)
        return Passed(loud.tally, other.tally, lasts_s)


@pytest.mark.parametrize("times", [4, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_however_many_ask_again_and_again_the_services_do_what_they_can(tmp_path: Path, times: int) -> None:
    passed = run_virtually(lambda clock: _pass(clock, tmp_path, times))
    tally = passed.loud
    assert not tally.failed and not tally.without_retry
    assert tally.speech_s >= 0.9 * CAPACITY * passed.lasted_s
    assert percentile(tally.first_s, 95) < 3 * SPEECH_S


@pytest.mark.slow
def test_another_key_hears_its_first_audio_as_soon_however_many_flood(tmp_path: Path) -> None:
    def passed(times: int) -> Passed:
        random.seed(1)  # of the times between the quiet callers
        return run_virtually(lambda clock: _pass(clock, tmp_path, times, has_quiet=True))

    usual, flooded = passed(1), passed(16)
    assert not flooded.quiet.refused and flooded.quiet.ended >= usual.quiet.ended
    firsts = [percentile(each.quiet.first_s, 0.75) for each in (usual, flooded)]
    assert firsts[1] <= 1.3 * firsts[0]


@pytest.mark.slow
def test_a_key_that_floods_keeps_another_one_neither_out_nor_waiting(tmp_path: Path) -> None:
    async def quiet_p95_s(clock: ManualClock, flood: int) -> float:
        async with stormy(clock, tmp_path, llm_capacity=40.0, slots=16) as storm:
            await _warm_up(storm)
            flooding = asyncio.create_task(storm.arrive(200 * flood, 0.05, "loud"))
            await storm.arrive(20, 2.0, "quiet")
            await flooding
            storm.check()
            quiet = [one for one in storm.spoken if one.caller == "quiet"]
            assert not [one for one in quiet if one.retry_s is not None]
            return percentile([one.first_s or 0.0 for one in quiet], 95)

    alone_s = run_virtually(lambda clock: quiet_p95_s(clock, 0))
    assert run_virtually(lambda clock: quiet_p95_s(clock, 4)) < alone_s + 1.5


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [64, 300])
@pytest.mark.parametrize("speed", [8.0, 16.0, 40.0])
def test_services_that_batch_refuse_nobody_before_they_are_seen_at_their_limit(
    tmp_path: Path, at_once: int, speed: float
) -> None:
    async def run(clock: ManualClock) -> None:
        patient = RoutingSettings(admission_wait_s=2.0)  # 300 at once need longer than by default where one is slow
        async with stormy(clock, tmp_path, speed, 2 * speed, settings=patient, worker=BatchingWorker) as storm:
            await _warm_up(storm)
            await asyncio.gather(*(storm.ask() for _ in range(at_once)))
            storm.check()
            assert not storm.refused
            first = [one.first_s or 0.0 for one in storm.admitted]
            assert max(first) < min(first) + 2.5

    run_virtually(run)


@pytest.mark.slow
def test_fast_services_refuse_nobody(tmp_path: Path) -> None:
    async def run(clock: ManualClock) -> None:
        async with stormy(clock, tmp_path, llm_capacity=4000.0, token2wav_capacity=4000.0) as storm:
            await _warm_up(storm)
            await asyncio.gather(*(storm.ask() for _ in range(300)))
            storm.check()
            assert not storm.refused

    run_virtually(run)
