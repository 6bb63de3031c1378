"""The engine admits as many streams as it serves in time, at once or not at all; a real engine on tiny weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from servicekit.stream_limit import COLD_STREAMS, LEAST_STREAMS, reserved_streams
from tests.token2wav_service.engine.factory import ManualClock, drain, make_engine, make_prompt, tokens_of
from tests.token2wav_service.engine.test_meter import slowed
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import CapacityError
from token2wav_service.types import StreamOptions, TokenChunk

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
        clock.time_s += 0.2


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


def test_without_listeners_as_many_streams_open_as_there_are_slots() -> None:
    engine = make_engine(ManualClock(), max_streams=100)
    assert len(_opened(engine, 200)) == engine.status().max_streams == 100
