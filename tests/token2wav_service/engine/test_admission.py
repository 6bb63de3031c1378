"""The engine admits as many streams as it serves in time, and measures how punctual it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from servicekit.stream_limit import COLD_STREAMS, LEAST_STREAMS, reserved_streams
from tests.token2wav_service.engine.factory import (
    PoisonableRunner,
    drain,
    make_engine,
    make_prompt,
    open_stream,
    push_all,
    step_beside,
    tokens_of,
)
from tests.virtual_time import ManualClock
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.stream import PlaybackDeadline, Punctuality
from token2wav_service.errors import CapacityError
from token2wav_service.types import AudioChunk, ChunkTiming, StreamOptions, TokenChunk

CHUNK_TOKENS = 18
FURTHER = StreamOptions(caller_has_share=True)
"""A caller's second stream."""


def _opened(engine: Token2WavEngine, most: int, options: StreamOptions = FURTHER) -> list[str]:
    """Open streams until one is refused."""

    def streams() -> Iterator[str]:
        voice = engine.voices.register(make_prompt()).voice_id
        with suppress(CapacityError):
            for _ in range(most):
                yield engine.open_stream(voice, options)

    return list(streams())


def _speak(engine: Token2WavEngine, clock: ManualClock, streams: list[str], chunks: int = 2) -> None:
    """Have each stream's listener get some chunks, and its end."""
    for index in range(chunks):
        for stream in streams:
            engine.add_chunk(TokenChunk(stream, index, tokens_of(CHUNK_TOKENS, index), index == chunks - 1))
        drain(engine)
        clock.seconds += 0.2


def test_a_cold_engine_admits_some_and_refuses_others_at_once_with_seconds() -> None:
    engine = make_engine(ManualClock(), max_streams=400, is_realtime=True)
    assert len(_opened(engine, 200)) == COLD_STREAMS
    voice = engine.voices.register(make_prompt()).voice_id
    with pytest.raises(CapacityError, match=r"64 streams are open, 64 may be; try again in 0\.\d s"):
        engine.open_stream(voice, FURTHER)
    assert engine.status().max_streams == COLD_STREAMS and 0 < engine.status().next_end_s < 1


def test_callers_with_few_streams_get_the_room_kept_for_them_even_behind_a_limit_that_fell() -> None:
    clock = ManualClock()
    engine = make_engine(clock, max_streams=30, is_realtime=True)
    held = _opened(engine, 100)
    assert len(held) == 30 - reserved_streams(30)
    others = _opened(engine, 100, StreamOptions())
    assert len(others) == 3, "as many as there are slots"
    for stream in (*held[6:], *others):
        engine.abort(stream)
    slowed(engine, clock, 5.0)
    for index in range(6):
        for stream in held[:6]:
            engine.add_chunk(TokenChunk(stream, index, tokens_of(CHUNK_TOKENS, index), False))
        drain(engine)
    assert engine.status().max_streams <= 6 and not _opened(engine, 1)
    assert len(_opened(engine, 100, StreamOptions())) == 1


def test_a_slow_engine_admits_fewer_and_room_comes_back_with_the_streams_that_end() -> None:
    clock = ManualClock()
    engine = make_engine(clock, max_streams=9, is_realtime=True)
    slowed(engine, clock, 2.0)
    for _ in range(2):
        _speak(engine, clock, _opened(engine, 9))
    assert LEAST_STREAMS <= engine.status().max_streams < 8
    assert len(_opened(engine, 9)) == engine.status().max_streams


def test_late_pieces_that_were_made_beside_others_do_not_lower_the_limit() -> None:
    clock = ManualClock()
    engine = make_engine(clock, max_streams=30, is_realtime=True, beside=2)
    slowed(engine, clock, 2.0)
    limit, opened = engine.status().max_streams, [open_stream(engine) for _ in range(20)]
    for stream in opened:
        engine.add_chunk(TokenChunk(stream, 0, tokens_of(CHUNK_TOKENS, 0), True))
        if stream is opened[0]:
            usual = engine.begin_step()
        else:
            assert step_beside(engine) == [stream]
    assert engine.status().max_streams == limit
    assert usual is not None and engine.end_step(usual)


def test_without_listeners_as_many_streams_open_as_there_are_slots() -> None:
    engine = make_engine(ManualClock(), max_streams=100)
    assert len(_opened(engine, 200)) == engine.status().max_streams == 100


def slowed(engine: Token2WavEngine, clock: ManualClock, step_s: float) -> None:
    """Make each step of an engine take time."""
    runner = engine.runner
    assert isinstance(runner, PoisonableRunner)
    run = runner.run

    def slow_run(works, *, beside=False):  # type: ignore[no-untyped-def]
        clock.seconds += step_s
        return run(works)

    runner.run = slow_run  # type: ignore[method-assign]


def test_queue_and_step_times_are_measured_and_taken_once() -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    slowed(engine, clock, 0.25)
    stream = open_stream(engine)
    windows = push_all(engine, stream, tokens_of(40, 0), 15)
    assert engine.stats().queued_chunks == windows == 3
    clock.seconds += 0.1
    results = drain(engine)
    taken = engine.take_measurements()
    assert taken.step_s == pytest.approx((0.25,) * 3)
    assert taken.queue_s == pytest.approx((0.1, 0.35, 0.6))
    chunk = results[1].outcome
    assert isinstance(chunk, AudioChunk)
    assert chunk.timing == ChunkTiming(0.0, pytest.approx(0.35), pytest.approx(0.6), 1)
    assert engine.stats().queued_chunks == 0
    assert engine.take_measurements().step_s == ()


@pytest.mark.parametrize(
    ("pushed_after_s", "step_s", "misses"),
    [pytest.param(0.0, 5.0, 1, id="a slow step"), pytest.param(5.0, 0.5, 0, id="a chunk that was pushed too late")],
)
def test_a_step_that_makes_a_waiting_listener_run_dry_is_a_deadline_miss(
    pushed_after_s: float, step_s: float, misses: int
) -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    stream = open_stream(engine)
    engine.add_chunk(TokenChunk(stream, 0, tokens_of(18, 0), False))
    engine.step()
    clock.seconds += pushed_after_s
    engine.add_chunk(TokenChunk(stream, 1, tokens_of(18, 1), False))
    slowed(engine, clock, step_s)
    engine.step()
    assert engine.stats().deadline_misses == misses


def test_after_a_miss_the_listener_plays_on_and_one_delay_is_one_miss() -> None:
    deadline = PlaybackDeadline()
    kept = [deadline.deliver(accepted_s, now_s, 1.0) for accepted_s, now_s in ((0.0, 1.0), (1.0, 2.5), (2.5, 3.0))]
    assert [each is not None and each.is_late for each in kept] == [False, True, False], "it plays from 2.5 to 3.5 now"
    assert kept[1:] == [Punctuality(-0.5, 1.0, True), Punctuality(0.5, 1.0, False)]
    assert deadline.deliver(3.0, 9.0, 0.0) is None, "nothing was due with an empty chunk"


def test_slots_and_the_voice_cache_are_in_the_counters() -> None:
    engine = make_engine(max_streams=5)
    engine.voices.register(make_prompt(1))
    engine.voices.register(make_prompt(1))
    stats = engine.stats()
    assert (stats.slots, stats.voice_hits, stats.voice_misses, stats.voice_evictions) == (5, 1, 1, 0)
