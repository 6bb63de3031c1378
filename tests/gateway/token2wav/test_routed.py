"""Streams over several token2wav replicas: who gets them, what happens when one is lost, what is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack

import numpy as np
import pytest

from gateway.core import AudioChunk, FloatArray, Token2WavStream
from gateway.errors import (
    OverloadedError,
    StreamLostError,
    Token2WavBusyError,
    Token2WavDeadlineError,
    Token2WavFailedError,
    Token2WavRejectedError,
    Token2WavUnavailableError,
    VoiceEvictedError,
    VoiceOutdatedError,
)
from gateway.routing.replica import LoadReport, ReplicaState, RoutingSettings
from gateway.token2wav.routed import RoutedToken2Wav
from tests.gateway.routing.fakes import QUICK, ScriptedToken2Wav, audio_of, chunks, routed, until
from tests.virtual_time import ManualClock, run_virtually

SEED = 7


def _replicas(*addresses: str, **options: object) -> list[ScriptedToken2Wav]:
    return [ScriptedToken2Wav(address, **options) for address in addresses]  # type: ignore[arg-type]


def _expected(count: int) -> FloatArray:
    return np.concatenate([audio_of(chunk, SEED) for chunk in chunks(count)])


async def _voice(router: RoutedToken2Wav, audio: bytes = b"anna") -> str:
    voice = (await router.register_voice(audio)).voice_id
    await router.voice_file_cache.wait_for(voice)
    return voice


def _joined(chunks: list[AudioChunk]) -> FloatArray:
    return np.concatenate([chunk.samples for chunk in chunks])


def _serving(replicas: list[ScriptedToken2Wav]) -> ScriptedToken2Wav:
    return next(replica for replica in replicas if replica.open)


async def _push_all(stream: Token2WavStream, count: int) -> list[AudioChunk]:
    return [await stream.push(chunk) for chunk in chunks(count)]


async def test_a_stream_on_one_replica_is_the_replica_s_own() -> None:
    (replica,) = _replicas("a")
    async with routed(replica) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            assert stream.stream_id == "a#1"
            chunks = await _push_all(stream, 4)
        assert np.array_equal(_joined(chunks), _expected(4))
        assert [chunk.index for chunk in chunks] == [0, 1, 2, 3] and chunks[-1].is_last


@pytest.mark.parametrize("lost_after", [0, 1, 3])
async def test_a_lost_stream_goes_on_elsewhere_at_the_right_sample(lost_after: int) -> None:
    replicas = _replicas("a", "b", "c", answers=lost_after)
    async with routed(*replicas) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            pushes = [stream.push(chunk) for chunk in chunks(5)]
            heard = [await push for push in pushes[:lost_after]]
            victim = _serving(replicas)
            for replica in replicas:
                replica.answers = 100
            victim.die()
            heard += [await push for push in pushes[lost_after:]]
        assert np.array_equal(_joined(heard), _expected(5))
        assert [chunk.index for chunk in heard] == list(range(5)) and heard[-1].is_last
        survivor = next(replica for replica in replicas if replica.streams and replica is not victim)
        assert survivor.streams[0].chunks == chunks(5) and survivor.streams[0].seed == SEED
        failed = {status.address: status.failovers_total for status in router.snapshot()}
        assert failed[victim.address] == 1 and sum(failed.values()) == 1


async def test_a_stream_survives_the_loss_of_its_second_replica_in_the_replay() -> None:
    replicas = _replicas("a", "b", "c")
    async with routed(*replicas) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            heard = [await stream.push(chunk) for chunk in chunks(4)[:2]]
            first = _serving(replicas)
            for replica in replicas:
                replica.answers = 1
            first.die()
            # NOTE: the loss shows with the next push.
            pushes = [stream.push(chunk) for chunk in chunks(4)[2:]]
            await until(lambda: any(replica.open for replica in replicas if replica is not first), "the failover")
            second = next(replica for replica in replicas if replica.open and replica is not first)
            await until(lambda: len(second.streams[0].chunks) >= 2, "the replay")
            for replica in replicas:
                replica.answers = 100
            second.die()
            heard += [await push for push in pushes]
        assert np.array_equal(_joined(heard), _expected(4))


async def test_a_replica_lost_while_a_moved_stream_closes_leaves_nothing_open() -> None:
    replicas = _replicas("a", "b", "c", answers=2)
    async with routed(*replicas) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            await stream.push(chunks(3)[0])
            _serving(replicas).die()
            await stream.push(chunks(3)[1])
            unheard = stream.push(chunks(3)[2])
            asyncio.get_running_loop().call_soon(_serving(replicas).die)
        await asyncio.sleep(0.05)
        assert unheard.exception() is not None


async def test_the_request_s_own_fault_is_not_carried_elsewhere() -> None:
    replicas = _replicas("a", "b", poison=6, poison_error=Token2WavRejectedError("token out of range"))
    async with routed(*replicas) as router:
        with pytest.raises(Token2WavRejectedError):
            async with router.open_stream(await _voice(router), SEED) as stream:
                await _push_all(stream, 4)
        assert sum(len(replica.streams) for replica in replicas) == 1
        assert [status.failures_total for status in router.snapshot()] == [0, 0]


async def test_windows_that_every_replica_fails_at_go_round_only_so_often() -> None:
    replicas = _replicas("a", "b", poison=6, poison_error=Token2WavFailedError("it burns"))
    async with routed(*replicas, settings=dataclasses.replace(QUICK, max_failovers=2)) as router:
        with pytest.raises(Token2WavFailedError):
            async with router.open_stream(await _voice(router), SEED) as stream:
                await _push_all(stream, 4)
        assert sum(len(replica.streams) for replica in replicas) == 3


async def test_a_stream_that_its_replica_ended_is_rebuilt_and_speaks_not_against_it() -> None:
    (replica,) = _replicas("a")
    async with routed(replica) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            heard = [await stream.push(chunks(2)[0])]
            replica.streams[0].die(StreamLostError("idle for too long"))
            heard.append(await stream.push(chunks(2)[1]))
        assert np.array_equal(_joined(heard), _expected(2))
        assert router.snapshot()[0].failures_total == 0


async def test_a_silent_replica_is_given_up_when_its_probes_fail() -> None:
    replicas = _replicas("a", "b", answers=0)
    async with routed(*replicas) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            push = stream.push(chunks(1)[0])
            silent = _serving(replicas)
            for replica in replicas:
                replica.answers = 100
            silent.is_dead = True
            assert np.array_equal((await push).samples, _expected(1))
        assert not silent.open


@pytest.mark.parametrize("moment", ["open", "pushed", "rebuilding", "replaying"])
async def test_a_caller_who_leaves_at_any_moment_leaves_nothing_behind(moment: str) -> None:
    replicas = _replicas("a", "b", answers=0 if moment in ("pushed", "replaying") else 100)
    started = asyncio.Event()

    async def speak(router: RoutedToken2Wav, voice: str) -> None:
        async with router.open_stream(voice, SEED) as stream:
            if moment != "open":
                pushes = [stream.push(chunk) for chunk in chunks(3)]
                if moment == "rebuilding":
                    await asyncio.gather(*pushes)
                    for replica in replicas:
                        replica.die()
                    pushes = [stream.push(chunks(4)[3])]
                if moment == "replaying":
                    victim = _serving(replicas)
                    victim.die()
                    await until(lambda: any(replica.open for replica in replicas if replica is not victim), "failover")
                started.set()
                await asyncio.gather(*pushes)
            started.set()
            await asyncio.Event().wait()

    async with routed(*replicas) as router:
        task = asyncio.create_task(speak(router, await _voice(router)))
        await started.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        names = {each.get_name() for each in asyncio.all_tasks()}
        assert not {name for name in names if name.startswith("failover")}


async def test_a_voice_follows_its_stream_without_being_made_again() -> None:
    replicas = _replicas("a", "b", slots=1)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        async with router.open_stream(voice, 1), router.open_stream(voice, 2):
            assert all(replica.open for replica in replicas)
        assert sum(len(replica.registered) for replica in replicas) == 1
        assert sum(len(replica.imported) for replica in replicas) == 1
        async with router.open_stream(voice, 1), router.open_stream(voice, 2):
            pass
        assert sum(len(replica.imported) for replica in replicas) == 1


@pytest.mark.parametrize("streams", [1, 5])
async def test_a_voice_that_is_lost_after_its_import_is_brought_again(streams: int) -> None:
    replicas = _replicas("a", slots=streams)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        replicas[0].voices.clear()
        replicas[0].forgets = 2
        async with AsyncExitStack() as stack:
            for stream in [router.open_stream(voice, seed) for seed in range(streams)]:
                await stack.enter_async_context(stream)
            assert len(replicas[0].open) == streams
        assert len(replicas[0].imported) == 3


async def test_a_voice_that_is_in_no_file_cache_must_be_registered_again() -> None:
    replicas = _replicas("a", "b")
    async with routed(*replicas) as router:
        with pytest.raises(VoiceEvictedError):
            async with router.open_stream("unknown", SEED):
                raise AssertionError


async def test_a_replica_that_always_loses_a_voice_is_passed_over() -> None:
    replicas = _replicas("a", "b", slots=2)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        other = next(replica for replica in replicas if not replica.registered)
        other.forgets = 1000
        async with router.open_stream(voice, 1), router.open_stream(voice, 2):
            assert not other.open
            assert len(other.imported) >= 3


async def test_a_replica_of_another_model_is_passed_over() -> None:
    replicas = _replicas("a", "b", slots=2)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        other = next(replica for replica in replicas if not replica.registered)
        other.import_error = VoiceOutdatedError("made with another model")
        async with router.open_stream(voice, 1), router.open_stream(voice, 2):
            assert not other.open
        with pytest.raises(VoiceEvictedError):
            async with router.open_stream(voice, 1), router.open_stream(voice, 2), router.open_stream(voice, 3):
                raise AssertionError


async def test_registering_goes_on_at_the_next_replica() -> None:
    replicas = _replicas("a", "b")
    async with routed(*replicas) as router:
        for number in range(4):
            replicas[number % 2].is_dead = True
            voice = await router.register_voice(b"anna")
            assert voice.voice_id == "voice-of-anna"
            replicas[number % 2].is_dead = False


async def test_a_replica_without_room_for_a_voice_is_passed_over() -> None:
    replicas = _replicas("a", "b")
    replicas[0].register_error = Token2WavBusyError("voices in use fill the cache")
    async with routed(*replicas) as router:
        for number in range(4):
            await router.register_voice(b"voice %d" % number)
        assert len(replicas[1].registered) == 4
        replicas[1].register_error = replicas[0].register_error
        with pytest.raises(OverloadedError) as refusal:
            await router.register_voice(b"one more")
        assert refusal.value.retry_after_s >= QUICK.interval_s
        assert router.snapshot()[0].failures_total == 0


async def test_a_voice_waits_for_room_where_all_replicas_are_full_for_a_moment() -> None:
    (replica,) = _replicas("a")
    replica.register_error = Token2WavBusyError("64 voices are in the making")
    async with routed(replica) as router:
        registering = asyncio.create_task(router.register_voice(b"anna"))
        await asyncio.sleep(0.1)
        assert not registering.done()
        replica.register_error = None
        assert (await registering).voice_id == "voice-of-anna"


async def test_a_replica_that_leaves_the_list_finishes_its_unslotted_calls() -> None:
    gate = asyncio.Event()
    replicas = _replicas("a", register_gate=gate)
    async with routed(*replicas) as router:
        registering = asyncio.create_task(router.register_voice(b"anna"))
        await asyncio.sleep(0.02)
        router.fleet.set_replicas([])
        await asyncio.sleep(5 * QUICK.interval_s)
        assert not replicas[0].is_closed
        gate.set()
        assert (await registering).voice_id == "voice-of-anna"
        await until(lambda: replicas[0].is_closed, "the goodbye")
        assert router.fleet.addresses == []


async def test_a_new_stream_is_not_lost_with_a_replica_that_stands_still_beyond_its_time() -> None:
    replicas = _replicas("a", "b")
    settings = dataclasses.replace(QUICK, admission_wait_s=0.05, failures_to_eject=100)
    async with routed(*replicas, settings=settings) as router:
        voice = await _voice(router)
        replicas[0].open_s, replicas[0].open_error = 0.1, Token2WavDeadlineError("no answer")
        for _ in range(4):
            await _speak_once(router, voice)
        replicas[1].open_s, replicas[1].open_error = 0.1, Token2WavDeadlineError("no answer")
        with pytest.raises(Token2WavDeadlineError):
            await _speak_once(router, voice)


async def test_replicas_that_turn_out_full_are_told_with_when_to_try_again() -> None:
    replicas = _replicas("a", "b", slots=0, open_s=0.1)
    settings = dataclasses.replace(QUICK, admission_wait_s=0.05, interval_s=60.0)
    async with routed(*replicas, settings=settings) as router:
        voice = await _voice(router)
        for replica in replicas:
            router.fleet.reported(replica.address, LoadReport(slots=1))
        with pytest.raises(OverloadedError) as refusal:
            await _speak_once(router, voice)
        assert refusal.value.retry_after_s >= QUICK.interval_s


async def test_a_voice_stays_in_the_file_cache_as_long_as_a_stream_speaks_in_it() -> None:
    replicas = _replicas("a", "b")
    async with routed(*replicas, voice_file_bytes=30) as router:
        voice = await _voice(router)
        async with router.open_stream(voice, SEED) as stream:
            heard = [await stream.push(chunks(2)[0])]
            for number in range(4):
                await router.register_voice(b"voice %d" % number)
            _serving(replicas).die()
            heard.append(await stream.push(chunks(2)[1]))
        assert np.array_equal(_joined(heard), _expected(2))
        await _voice(router, b"another")
        assert router.voice_file_cache.get(voice) is None


async def test_a_stream_uses_its_voice_s_file_so_that_another_makes_room() -> None:
    (replica,) = _replicas("a")
    async with routed(replica, voice_file_bytes=40) as router:
        anna = await _voice(router)
        await _voice(router, b"berta")
        await _speak_once(router, anna)
        await _voice(router, b"clara")
        assert router.voice_file_cache.get(anna) and router.voice_file_cache.get("voice-of-clara")
        assert router.voice_file_cache.get("voice-of-berta") is None


async def test_a_stream_elsewhere_waits_for_the_file_of_a_voice_that_was_registered_just_now() -> None:
    replicas = _replicas("a", "b", export_s=0.1)
    async with routed(*replicas) as router:
        voice = (await router.register_voice(b"anna")).voice_id
        assert router.voice_file_cache.get(voice) is None
        knows = next(replica for replica in replicas if replica.registered)
        router.fleet.reported(knows.address, LoadReport(is_draining=True))
        await _speak_once(router, voice)
        assert [len(replica.imported) for replica in replicas if replica is not knows] == [1]


async def test_a_stream_whose_replica_is_lost_while_it_makes_the_voice_goes_on_where_that_is_made_again() -> None:
    maker, other = _replicas("a", "b", export_s=0.05)
    maker.answers, other.is_draining = 0, True
    async with routed(maker, other) as router:
        voice = (await router.register_voice(b"anna")).voice_id
        async with router.open_stream(voice, SEED) as stream:
            pushes = [stream.push(chunk) for chunk in chunks(2)]
            other.is_draining = False
            maker.die()
            assert np.array_equal(_joined([await push for push in pushes]), _expected(2))
        assert maker.registered == other.registered == [b"anna"]


async def test_a_voice_that_its_maker_has_lost_before_its_file_was_fetched_is_made_again() -> None:
    (replica,) = _replicas("a")
    async with routed(replica) as router:
        voice = (await router.register_voice(b"anna")).voice_id
        replica.voices.clear()  # it has started again
        await _speak_once(router, voice)
        assert replica.registered == [b"anna", b"anna"]


async def test_streams_that_need_the_same_voice_import_it_once() -> None:
    replicas = _replicas("a", "b", slots=20)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        knows = next(replica for replica in replicas if replica.registered)
        (other,) = [replica for replica in replicas if replica is not knows]
        knows.is_draining = True
        await until(lambda: router.fleet.state_of(knows.address) is ReplicaState.DRAINING, "the drain")
        await asyncio.gather(*(_speak_once(router, voice) for _ in range(10)))
        assert other.opened_total == 10
        assert len(other.imported) == 1


@pytest.mark.parametrize("steps", range(1, 5))
async def test_a_second_cancel_while_the_stream_is_rebuilt_leaves_nothing_behind(steps: int) -> None:
    replicas = _replicas("a", "b", answers=0)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        has_pushed = asyncio.Event()

        async def speak() -> None:
            async with router.open_stream(voice, SEED) as stream:
                pushes = [stream.push(chunk) for chunk in chunks(6)]
                has_pushed.set()
                await asyncio.gather(*pushes)

        speaking = asyncio.create_task(speak())
        await has_pushed.wait()
        lost = _serving(replicas)
        lost.die()
        await until(lambda: any(replica.open for replica in replicas if replica is not lost), "the failover")
        await asyncio.sleep(0.02)
        speaking.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
        await until(lambda: not any(replica.open for replica in replicas), "the end of the stream")


async def test_a_stream_waits_for_a_slot_that_comes_in_time() -> None:
    (replica,) = _replicas("a", slots=1)
    async with routed(replica) as router:
        voice = await _voice(router)
        first = router.open_stream(voice, 1)
        await first.__aenter__()
        waiting = asyncio.create_task(_speak_once(router, voice))
        await until(lambda: router.fleet.looking == 1, "waiting")
        await first.__aexit__(None, None, None)
        assert len(await waiting) == 1


async def test_a_stream_that_gets_no_slot_in_time_is_refused_with_when_to_try_again() -> None:
    (replica,) = _replicas("a", slots=1)
    async with routed(replica, settings=dataclasses.replace(QUICK, admission_wait_s=0.1)) as router:
        voice = await _voice(router)
        async with router.open_stream(voice, 1):
            with pytest.raises(OverloadedError) as refusal:
                await _speak_once(router, voice)
            assert refusal.value.retry_after_s >= QUICK.interval_s
            assert router.fleet.looking == 0
        assert replica.opened_total == 1


async def test_whoever_leaves_the_queue_leaves_no_slot_taken() -> None:
    (replica,) = _replicas("a", slots=1)
    async with routed(replica) as router:
        voice = await _voice(router)
        async with router.open_stream(voice, 1):
            waiting = asyncio.create_task(_speak_once(router, voice))
            await until(lambda: router.fleet.looking == 1, "waiting")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        # The other way round: the slot comes in the same moment as the cancel.
        holder = router.open_stream(voice, 1)
        await holder.__aenter__()
        waiting = asyncio.create_task(_speak_once(router, voice))
        await until(lambda: router.fleet.looking == 1, "waiting")
        leaving = asyncio.create_task(holder.__aexit__(None, None, None))  # type: ignore[arg-type]
        await until(lambda: router.fleet.looking == 0, "the place")
        waiting.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)


async def test_a_full_replica_that_seemed_free_costs_nothing_but_another_try() -> None:
    replicas = _replicas("a", "b", slots=2)
    async with routed(*replicas) as router:
        voice = await _voice(router)
        async with router.open_stream(voice, 1), router.open_stream(voice, 2):
            replicas[0].slots = 1
            async with router.open_stream(voice, 3):
                assert (len(replicas[0].open), len(replicas[1].open)) == (1, 2)
        assert all(status.failures_total == 0 for status in router.snapshot())


async def test_a_draining_replica_finishes_its_streams_and_gets_no_others() -> None:
    replicas = _replicas("a", "b")
    async with routed(*replicas) as router:
        voice = await _voice(router)
        async with router.open_stream(voice, SEED) as stream:
            heard = [await stream.push(chunks(2)[0])]
            draining = _serving(replicas)
            draining.is_draining = True
            state = {status.address: status.state for status in router.snapshot()}
            await until(lambda: router.fleet.state_of(draining.address) is ReplicaState.DRAINING, str(state))
            for _ in range(3):
                await _speak_once(router, voice)
            heard.append(await stream.push(chunks(2)[1]))
            assert draining.open
        assert np.array_equal(_joined(heard), _expected(2))
        assert draining.opened_total == 1


async def _speak_once(router: RoutedToken2Wav, voice: str) -> list[AudioChunk]:
    async with router.open_stream(voice, SEED) as stream:
        return await _push_all(stream, 1)


async def test_a_stream_knows_the_hops_that_its_server_wants() -> None:
    replicas = _replicas("a")
    replicas[0].hop_multiple = 25
    async with routed(*replicas) as router, router.open_stream(await _voice(router), 1) as stream:
        assert stream.hop_multiple == 25


async def test_a_stream_is_not_played_again_where_it_was_too_slow_but_where_that_was_started_anew() -> None:
    (replica,) = _replicas("a", answers=1, step_s=0.01)
    async with routed(replica) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            heard = [await stream.push(chunks(3)[0])]
            late = [stream.push(chunk) for chunk in chunks(3)[1:]]
            replica.answers = 100
            replica.streams[0].die(Token2WavDeadlineError("no audio for chunk 1"))
            await asyncio.sleep(0.2)
            assert replica.opened_total == 1 and not late[0].done()
            replica.steps = 0
            heard += [await push for push in late]
        assert np.array_equal(_joined(heard), _expected(3))
        assert replica.opened_total == 2


def test_a_stream_that_hung_at_a_replica_which_serves_nobody_is_tried_there_again() -> None:
    async def run(clock: ManualClock) -> None:
        (replica,) = _replicas("a", answers=1)
        async with routed(replica, settings=RoutingSettings(), clock=clock) as router:
            async with router.open_stream(await _voice(router), SEED) as stream:
                heard = [await stream.push(chunks(3)[0])]
                late = [stream.push(chunk) for chunk in chunks(3)[1:]]
                replica.answers = 100
                replica.streams[0].die(Token2WavDeadlineError("no audio for chunk 1", serves_others=False))
                heard += [await push for push in late]
            assert np.array_equal(_joined(heard), _expected(3))
            assert replica.opened_total == 2
            assert clock.now() < 60.0

    run_virtually(run)


async def test_a_stream_that_was_too_slow_at_one_replica_goes_on_at_another() -> None:
    replicas = _replicas("a", "b", answers=1)
    async with routed(*replicas) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            heard = [await stream.push(chunks(3)[0])]
            slow = _serving(replicas)
            late = [stream.push(chunk) for chunk in chunks(3)[1:]]
            next(replica for replica in replicas if replica is not slow).answers = 100
            slow.streams[0].die(Token2WavDeadlineError("no audio for chunk 1"))
            heard += [await push for push in late]
        assert np.array_equal(_joined(heard), _expected(3))
        assert slow.opened_total == 1


async def _speak_over_a_restart(clock: ManualClock, replicas: list[ScriptedToken2Wav], away_s: float) -> FloatArray:
    async with routed(*replicas, settings=RoutingSettings(), clock=clock) as router:
        async with router.open_stream(await _voice(router), SEED) as stream:
            heard = [await stream.push(chunk) for chunk in chunks(5)[:2]]
            for replica in replicas:
                replica.die()
            late = [stream.push(chunk) for chunk in chunks(5)[2:]]
            await asyncio.sleep(away_s)
            for replica in replicas:
                replica.voices.clear()
                replica.is_dead = False
            heard += [await push for push in late]
        return _joined(heard)


def test_a_stream_waits_for_its_only_replica_to_be_started_again_and_goes_on_at_its_sample() -> None:
    replicas = _replicas("a")
    audio = run_virtually(lambda clock: _speak_over_a_restart(clock, replicas, away_s=90.0))
    assert np.array_equal(audio, _expected(5))
    assert replicas[0].imported and not replicas[0].open


@pytest.mark.parametrize(("addresses", "away_s"), [("a", 130.0), ("ab", 90.0)])
def test_the_wait_for_a_restart_is_bounded_and_shorter_where_others_might_help(addresses: str, away_s: float) -> None:
    with pytest.raises(Token2WavUnavailableError):
        run_virtually(lambda clock: _speak_over_a_restart(clock, _replicas(*addresses), away_s))
