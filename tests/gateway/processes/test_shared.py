"""What the processes of one gateway share: a hub and its workers in one event loop, over real socket pairs."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from gateway.access.access import HOUR_S, Access
from gateway.access.caller import Caller, CallerLimits
from gateway.errors import (
    AudioLimitError,
    NotReadyError,
    OverloadedError,
    StreamLimitError,
    TextTooLongError,
    VoiceRateError,
)
from gateway.processes.link import Handlers, Link, open_link
from gateway.processes.metrics import merged, snapshot
from gateway.processes.worker import Worker
from tests.gateway.processes.group import SLOTS, Group, Process, two
from tests.gateway.routing.fakes import QUICK, until

ANNA = Caller("anna", CallerLimits(streams=1, audio_s_per_hour=10.0, unspoken_characters=100))


async def _speak(process: Process, seconds: float, priority: int = 10) -> None:
    voice = (await process.token2wav.register_voice(b"anna")).voice_id
    async with process.gate.admitted(priority), process.token2wav.open_stream(voice, 1):
        await asyncio.sleep(seconds)


async def test_processes_that_know_nothing_of_each_other_fill_one_service_and_no_more() -> None:
    group = Group(settings=replace(QUICK, admission_wait_s=0.3))
    async with group.process(1) as first, group.process(2) as second:
        most = [asyncio.create_task(_speak(process, 2.0)) for process in (first, second) for _ in range(SLOTS)]
        results = await asyncio.gather(*most, return_exceptions=True)
        refused = [result for result in results if isinstance(result, OverloadedError)]
        assert len(refused) == SLOTS and group.token2wav.opened_total == SLOTS
        assert all(refusal.retry_after_s >= 1.0 for refusal in refused)
        assert (first.gate.speaking, second.gate.speaking, first.gate.waiting, second.gate.waiting) == (0, 0, 0, 0)


async def test_a_process_without_streams_gets_a_slot_while_another_one_takes_all_that_it_can() -> None:
    async def speak_again_and_again(process: Process) -> None:
        while True:
            await _speak(process, 0.1)

    group = Group(settings=replace(QUICK, admission_wait_s=30.0))
    async with group.process(1) as first, group.process(2) as second:
        flood = [asyncio.create_task(speak_again_and_again(first)) for _ in range(100)]
        await until(lambda: first.gate.speaking == SLOTS, "the flood")
        for _ in range(3):
            await _speak(second, 0.01)
        assert first.gate.waiting > 50, "it was not served behind the flood"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        await until(lambda: not (first.gate.speaking or first.gate.waiting), "the end")


async def test_limits_of_a_caller_hold_over_processes() -> None:
    async with two() as (_, first, second):
        async with first.access.speaking(ANNA) as account:
            with pytest.raises(StreamLimitError, match="limit is 1"):
                async with second.access.speaking(ANNA):
                    pass
            account.deliver(11.0)
        usage = second.access.usage("anna")
        await until(lambda: usage.audio.within(HOUR_S, second.worker._clock.now()) == 11.0, "the news")
        with pytest.raises(AudioLimitError):
            async with second.access.speaking(ANNA):
                pass
        texts = [first.access.unspoken_text(ANNA), second.access.unspoken_text(ANNA)]
        texts[0].add(60)
        await until(lambda: usage.characters_elsewhere == 60, "the news")
        with pytest.raises(TextTooLongError):
            texts[1].add(60)
        texts[0].take(60)
        await until(lambda: usage.characters_elsewhere == 0, "the news")
        texts[1].add(60)


async def test_what_a_process_held_comes_back_when_it_dies() -> None:
    group = Group()
    async with group.process(1) as first:
        async with group.process(2) as second:
            await second.access.speaking(ANNA).__aenter__()
            with pytest.raises(StreamLimitError):
                await first.access.speaking(ANNA).__aenter__()
        async with first.access.speaking(ANNA):
            pass


async def test_a_process_that_comes_later_knows_what_callers_have_got() -> None:
    group = Group()
    async with group.process(1) as first:
        async with first.access.speaking(ANNA) as account:
            account.deliver(11.0)
        await until(lambda: not first.access.usage("anna").untold_audio_s, "the news")
        async with group.process(2) as second:
            with pytest.raises(AudioLimitError):
                async with second.access.speaking(ANNA):
                    pass


async def test_new_voices_are_counted_over_processes_and_the_same_one_only_once() -> None:
    async with two() as (_, first, second):
        for process, voice in ((first, "x"), (second, "x"), (second, "y")):
            await process.worker.voices.take("anna", voice, 1000)
        with pytest.raises(VoiceRateError, match="try again in"):
            await first.worker.voices.take("anna", "z", 1000)
        assert [await each.worker.creations.take("anna") for each in (first, second)] == [0.0, 0.0]
        assert await first.worker.creations.take("anna") > 0
        async with first.worker.voices.turn("anna"):
            other = asyncio.create_task(_take_turn(second))
            await asyncio.sleep(0.02)
            assert not other.done()
        await other


async def _take_turn(process: Process) -> None:
    async with process.worker.voices.turn("anna"):
        pass


async def test_a_gateway_is_ready_when_all_its_processes_have_been_warm() -> None:
    async with two() as (group, first, second):
        first.worker.note_warm()
        await asyncio.sleep(0.02)
        assert not first.worker.is_warm
        second.worker.note_warm()
        await until(lambda: first.worker.is_warm and second.worker.is_warm, "readiness")
        async with group.process(3) as later:
            await until(lambda: later.worker.is_warm, "readiness")


async def test_without_its_parent_a_process_lets_nobody_speak_and_is_told() -> None:
    ours, theirs = socket.socketpair()
    group, told = Group(), asyncio.Event()
    worker = Worker(1, theirs, group.clock)
    worker.on_orphaned = told.set
    access = Access(None, CallerLimits(), group.clock, worker.streams)
    async with worker.serving(access):
        link = await open_link(ours, group.hub.handlers(1))
        async with access.speaking(ANNA):
            link.close()
            await told.wait()
        with pytest.raises(NotReadyError):
            async with access.speaking(ANNA):
                pass


async def test_metrics_of_a_process_that_died_still_count() -> None:
    group = Group()
    registries = [CollectorRegistry(), CollectorRegistry()]
    counters = [Counter("done_total", "Done", ["how"], registry=each) for each in registries]
    gauges = [Gauge("now", "Now", registry=each) for each in registries]
    async with group.process(1) as first:
        gathered = first.worker.gathered(registries[0])
        async with group.process(2) as second:
            second.worker.gathered(registries[1])
            for counter, gauge in zip(counters, gauges, strict=True):
                counter.labels("well").inc(2)
                gauge.set(5)
            text = (await asyncio.to_thread(generate_latest, gathered)).decode()
            assert 'done_total{how="well"} 4.0' in text
            assert "now 10.0" in text
        counters[0].labels("well").inc()
        text = (await asyncio.to_thread(generate_latest, gathered)).decode()
        assert 'done_total{how="well"} 5.0' in text
        assert "now 5.0" in text


def test_what_processes_know_of_the_same_replica_is_not_added_up() -> None:
    def told(free: int, step_s: float, ready: int) -> CollectorRegistry:
        registry = CollectorRegistry()
        for name, value in (("replica_free_slots", free), ("replica_step_seconds", step_s), ("replicas", ready)):
            Gauge(f"cosydit_gateway_{name}", name, ["replica"], registry=registry).labels("a").set(value)
        return registry

    families = merged([snapshot(told(3, 0.1, 1)), snapshot(told(4, 0.2, 1))])
    assert [family[3][0][2] for family in families] == [3, 0.2, 1]


class _Pipe:
    """A transport as another event loop's may be: none of asyncio's classes."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def test_a_link_works_over_the_transports_of_any_event_loop() -> None:
    link, pipe = Link(Handlers()), _Pipe()
    link.connection_made(pipe)  # type: ignore[arg-type]
    link.note("beat")
    assert link.is_open and b"beat" in pipe.written
