"""What the processes of one gateway share: workers over one ledger in one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from gateway.access.access import Access
from gateway.access.caller import Caller, CallerLimits
from gateway.errors import AudioLimitError, NotReadyError, StreamLimitError, VoiceNotFoundError
from gateway.ledger import CallerLedger
from gateway.lifecycle.gate import Gate
from gateway.llm.routed import RoutedSpeechLM
from gateway.processes.worker import Worker, lasting, merged, snapshot
from gateway.routing.replica import RoutingSettings
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.directory import Viewer
from gateway.voices.registry import VoiceRegistry
from servicekit.clock import SystemClock
from tests.gateway.routing.fakes import QUICK, ScriptedLLM, ScriptedToken2Wav, routed, routed_llm, until
from tests.gateway.voices.fakes import FakeVoiceMaker, draft, make_store
from tests.virtual_time import ManualClock

SLOTS = 5


@dataclass
class Process:
    """One worker and what it serves with."""

    worker: Worker
    gate: Gate
    access: Access
    llm: RoutedSpeechLM
    token2wav: RoutedToken2Wav
    beats: int
    """The parent's end of the pipe."""


class Group:
    """Workers that can be started and killed; the folder keeps their ledger."""

    def __init__(self, folder: Path, settings: RoutingSettings = QUICK) -> None:
        self.clock = SystemClock()
        self.path = folder / "shared" / "ledger"
        self.path.parent.mkdir()
        self.ledger = CallerLedger(self.clock, self.path)
        """The parent's."""
        self.settings = settings
        self.token2wav = ScriptedToken2Wav("a", slots=SLOTS)

    @asynccontextmanager
    async def process(self, number: int) -> AsyncIterator[Process]:
        """Run one worker until the context is left, which is its death."""
        ours, theirs = os.pipe()
        ledger = CallerLedger(self.clock, self.path, number)
        worker = Worker(number, theirs, ledger)
        async with (
            routed_llm(ScriptedLLM("l"), settings=self.settings) as llm,
            routed(self.token2wav, settings=self.settings) as token2wav,
        ):
            access = Access(None, CallerLimits(), self.clock, ledger)
            async with worker.serving():
                gate = Gate(llm, token2wav, self.clock, lambda: Caller("anna"))
                yield Process(worker, gate, access, llm, token2wav, ours)
        os.close(ours)
        self.ledger.end_process(number, [])

    @asynccontextmanager
    async def two(self) -> AsyncIterator[tuple[Process, Process]]:
        """Run two workers."""
        async with self.process(1) as first, self.process(2) as second:
            yield first, second


ANNA = Caller("anna", CallerLimits(streams=1, audio_s_per_hour=10.0, unspoken_characters=100))


async def _speak(process: Process, seconds: float, priority: int = 10) -> None:
    voice = (await process.token2wav.register_voice(b"anna")).voice_id
    async with process.gate.admitted(priority), process.token2wav.open_stream(voice, 1):
        await asyncio.sleep(seconds)


async def test_a_process_without_streams_gets_a_slot_while_another_one_takes_all_that_it_can(tmp_path: Path) -> None:
    async def speak_again_and_again(process: Process) -> None:
        while True:
            await _speak(process, 0.1)

    group = Group(tmp_path, replace(QUICK, admission_wait_s=30.0))
    async with group.two() as (first, second):
        flood = [asyncio.create_task(speak_again_and_again(first)) for _ in range(100)]
        await until(lambda: first.gate.speaking == SLOTS, "the flood")
        for _ in range(3):
            await _speak(second, 0.01)
        assert first.gate.waiting > 50, "it was not served behind the flood"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        await until(lambda: not (first.gate.speaking or first.gate.waiting), "the end")


async def test_limits_of_a_caller_hold_over_processes_and_for_one_that_comes_later(tmp_path: Path) -> None:
    group = Group(tmp_path)
    async with group.two() as (first, second):
        async with first.access.speaking(ANNA) as account:
            with pytest.raises(StreamLimitError, match="limit is 1"):
                await second.access.speaking(ANNA).__aenter__()
            account.deliver(11.0)
        async with group.process(3) as later:
            for process in (second, later):
                with pytest.raises(AudioLimitError):
                    await process.access.speaking(ANNA).__aenter__()


async def test_what_a_process_held_comes_back_when_it_dies(tmp_path: Path) -> None:
    group = Group(tmp_path)
    async with group.process(1) as first:
        async with group.process(2) as second:
            await second.access.speaking(ANNA).__aenter__()
            with pytest.raises(StreamLimitError):
                await first.access.speaking(ANNA).__aenter__()
        async with first.access.speaking(ANNA):
            pass


async def test_a_created_voice_stays_out_of_reach_of_other_keys_in_every_process(tmp_path: Path) -> None:
    makers = [FakeVoiceMaker(), FakeVoiceMaker()]
    stores = [make_store(tmp_path, maker) for maker in makers]
    by_anna, by_bob, of_anna = (
        VoiceRegistry(makers[process], store=stores[process], viewer=lambda key=key: Viewer(key))  # type: ignore[misc]
        for process, key in ((0, "anna"), (1, "bob"), (1, "anna"))
    )
    voice = await by_anna.create(draft())
    for name in (voice.id, voice.name, f"created:{voice.id}"):
        with pytest.raises(VoiceNotFoundError):
            await by_bob.resolve(name)
    assert by_bob.names == []
    assert (await of_anna.resolve("eva")).transcript == "I am Eva."
    await of_anna.delete("eva")
    with pytest.raises(VoiceNotFoundError):
        await by_anna.resolve("eva")


def test_new_voices_are_counted_over_processes_and_the_same_one_only_once(tmp_path: Path) -> None:
    clock = ManualClock()
    first, second = (CallerLedger(clock, tmp_path / "ledger", number) for number in (1, 2))
    waits = [ledger.may_in("bring", "anna", 2, name=name) for ledger, name in ((first, "x"), (second, "x"))]
    waits += [ledger.may_in("bring", "anna", 2, name=name) for ledger, name in ((second, "y"), (first, "z"))]
    assert waits == [0.0, 0.0, 0.0, 60.0]
    assert [ledger.may_in("create", "anna", 2) for ledger in (first, second, first)] == [0.0, 0.0, 60.0]
    clock.seconds += 60.0
    assert second.may_in("create", "anna", 2) == 0.0


def test_who_cannot_count_lets_nobody_speak_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger._LOCK_WAIT_S", 0.01)
    first, second = (CallerLedger(ManualClock(), tmp_path / "ledger", number) for number in (1, 2))
    with first._changing(), pytest.raises(NotReadyError, match="TMPDIR"):
        second.take_stream("anna", 1)
    assert second.take_stream("anna", 1) is None and first.streams("anna") == 1


async def test_a_worker_beats_once_its_doors_are_open_and_cleans_up_behind_a_parent_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path)
    async with group.process(1) as process:
        os.set_blocking(process.beats, False)
        with pytest.raises(BlockingIOError):
            os.read(process.beats, 100)
        process.worker.note_opened()
        assert os.read(process.beats, 100)
    assert group.path.exists()
    async with group.process(2):
        monkeypatch.setattr("os.getppid", lambda: 1)
    assert not group.path.parent.exists()


async def test_one_scrape_tells_the_metrics_of_all_processes(tmp_path: Path) -> None:
    registries = [CollectorRegistry(), CollectorRegistry()]
    for registry in registries:
        Counter("done_total", "Done", ["how"], registry=registry).labels("well").inc(2)
        Gauge("now", "Now", registry=registry).set(5)
    async with Group(tmp_path).two() as (first, second):
        gathered = first.worker.gathered(registries[0])
        second.worker.gathered(registries[1])
        await until(lambda: 2 in first.worker.ledger.metrics(), "the news")
        text = (await asyncio.to_thread(generate_latest, gathered)).decode()
        assert 'done_total{how="well"} 4.0' in text and "now 10.0" in text
        assert [family[0] for family in lasting(snapshot(registries[0]))] == ["done"]


def test_what_processes_know_of_the_same_replica_is_not_added_up() -> None:
    def told(free: int, step_s: float, ready: int) -> CollectorRegistry:
        registry = CollectorRegistry()
        for name, value in (("replica_free_slots", free), ("replica_step_seconds", step_s), ("replicas", ready)):
            Gauge(f"cosydit_gateway_{name}", name, ["replica"], registry=registry).labels("a").set(value)
        return registry

    families = merged({2: snapshot(told(4, 0.2, 2)), 1: snapshot(told(3, 0.1, 1))})
    assert [family[3][0][2] for family in families] == [3, 0.2, 1]
