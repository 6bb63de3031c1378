"""Who runs next, in what company."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.token2wav_service.engine.factory import make_engine, open_stream, step_beside, tokens_of
from tests.virtual_time import ManualClock
from token2wav_service.engine.engine import LAUNCH_SHARE
from token2wav_service.engine.stream import BESIDE_WAITING, CLASS_PENALTY_S, FIRST_AUDIO_DUE_S, LATE_S, next_batch
from token2wav_service.types import TokenChunk


class TwoBuckets:
    """Programs for chunks of at most 10 tokens, three a step, and for all others, one a step."""

    def bucket(self, chunk: TokenChunk, state: object) -> int:
        return 10 if len(chunk.token_ids) <= 10 else 100

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        return min(ready, 3 if bucket == 10 else 1)


class ThreeBuckets:
    """Programs for chunks of up to 10, 20 and 40 tokens: 16, 8 and 4 a step."""

    def bucket(self, chunk: TokenChunk, state: object) -> int:
        return next(bucket for bucket in (10, 20, 40) if len(chunk.token_ids) <= bucket)

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        return min(ready, 160 // bucket)


class OneBucket:
    """One program for all chunks, of any number in a crowd."""

    def bucket(self, chunk: TokenChunk, state: object) -> int:
        return 0

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        return ready if is_crowded else 1


def stream(name: str, due_s: float, tokens: int = 5, priority: int = 1) -> Any:
    options = SimpleNamespace(priority=priority)
    waiting = [TokenChunk(name, 0, (0,) * tokens, False)]
    return SimpleNamespace(state=None, is_ready=True, waiting=waiting, options=options, due_s=due_s, name=name)


def names(streams: list[Any], max_batch_size: int = 8) -> list[str]:
    return names_of(next_batch(streams, TwoBuckets(), max_batch_size))  # type: ignore[arg-type]


def names_of(batch: list[Any]) -> list[str]:
    return [each.name for each in batch]


def waiting(*groups: tuple[int, int]) -> list[Any]:
    """Streams of groups of (streams, tokens), the more urgent group first; a name tells tokens and place."""
    sizes = [tokens for streams, tokens in groups for _ in range(streams)]
    return [stream(f"{tokens}:{place}", float(place), tokens) for place, tokens in enumerate(sizes)]


def taken(streams: list[Any], crowded_steps: float = 2.0, max_batch_size: int = 16) -> tuple[str, int]:
    """Return the tokens of the least urgent chunk in the batch, and the chunks."""
    found = names_of(next_batch(streams, ThreeBuckets(), max_batch_size, crowded_steps))  # type: ignore[arg-type]
    return found[-1].split(":")[0], len(found)


def test_the_most_urgent_run_first_and_as_many_as_a_step_takes() -> None:
    assert names([stream(str(due), due) for due in (5, 1, 4, 2, 3)]) == ["1", "2", "3"]


def test_a_step_holds_one_bucket_the_most_urgent_streams() -> None:
    assert names([stream("long", 1, tokens=50), stream("short", 2), stream("long too", 3, tokens=50)]) == ["long"]


def test_where_two_steps_wait_the_most_urgent_chunk_runs_in_a_larger_program() -> None:
    assert taken(waiting((4, 10), (14, 20))) == ("20", 8), "4/16 and 14/8 of a step"
    assert taken(waiting((4, 10), (13, 20))) == ("10", 4)


def test_a_mixed_step_takes_the_most_urgent_of_all_that_fit() -> None:
    mixed = [stream("short", 0, 5), stream("long", 1, 20), stream("longest", 2, 40), stream("short too", 3, 5)]
    streams = [*reversed(mixed), *(stream(f"{due}", due, 20) for due in range(4, 12))]
    batch = next_batch(streams, ThreeBuckets(), 16, 1.0)  # type: ignore[arg-type]
    assert names_of(batch) == ["short", "long", "short too", "4", "5", "6", "7", "8"]


def test_a_mixed_step_runs_the_smallest_program_that_gets_half_full() -> None:
    assert taken(waiting((1, 10), (3, 20), (8, 40))) == ("20", 4)
    assert taken(waiting((1, 10), (2, 20), (8, 40))) == ("40", 4)


def test_a_step_of_one_bucket_stays_where_no_mixed_one_takes_more_chunks() -> None:
    assert taken(waiting((8, 10), (20, 20))) == ("10", 8)
    assert taken(waiting((7, 10), (20, 20))) == ("20", 8)
    assert taken(waiting((30, 10), (1, 40))) == ("10", 16), "not four in the program of the largest"


def test_smaller_chunks_run_beside_the_most_urgent_one_only_where_it_is_smaller_itself() -> None:
    assert taken(waiting((2, 20), (40, 10))) == ("20", 2)


def test_the_batch_size_bounds_a_mixed_step_and_what_counts_as_full() -> None:
    assert taken(waiting((1, 10), (6, 20)), max_batch_size=3) == ("20", 3), "1/3 and 6/3 of a step"
    assert taken(waiting((1, 10), (5, 20)), max_batch_size=3) == ("20", 3)
    assert taken(waiting((1, 10), (4, 20)), max_batch_size=3) == ("10", 1)


def test_a_runner_of_one_program_takes_the_most_urgent_whatever_waits() -> None:
    batch = next_batch(waiting((3, 10), (90, 20)), OneBucket(), 4, crowded_steps=0.0)  # type: ignore[arg-type]
    assert names_of(batch) == ["10:0", "10:1", "10:2", "20:3"]


def test_a_lower_class_waits_for_its_penalty_and_no_longer() -> None:
    late = 1.5 * CLASS_PENALTY_S
    urgent_low, relaxed_high = stream("low", 0.0, priority=2, tokens=50), stream("high", 0.5 * CLASS_PENALTY_S)
    assert names([urgent_low, relaxed_high]) == ["high"]
    assert names([urgent_low, stream("high", late)]) == ["low"]


def test_nothing_ready_is_no_batch() -> None:
    idle = SimpleNamespace(is_ready=False)
    assert next_batch([idle], TwoBuckets(), 4) == []  # type: ignore[arg-type,list-item]


def test_a_stream_that_paused_is_not_before_those_that_waited() -> None:
    clock = ManualClock()
    engine = make_engine(clock, max_batch_size=1)
    paused, other = open_stream(engine, seed=0), open_stream(engine, seed=1)
    for stream_id in (paused, other):
        engine.add_chunk(TokenChunk(stream_id, 0, tokens_of(18, 0), False))
        engine.step()
    clock.seconds = 40.0  # both listeners have run dry
    engine.add_chunk(TokenChunk(other, 1, tokens_of(18, 1), False))
    clock.seconds = 40.01
    engine.add_chunk(TokenChunk(paused, 1, tokens_of(18, 1), False))
    engine.add_chunk(TokenChunk(paused, 2, tokens_of(18, 2), False))
    assert [result.stream_id for _ in range(3) for result in engine.step()] == [other, paused, paused]
    for stream_id in (paused, other):
        engine.abort(stream_id)


def test_a_new_stream_whose_text_came_late_is_not_before_a_listener_who_runs_dry_sooner() -> None:
    clock = ManualClock()
    engine = make_engine(clock, max_batch_size=1)
    late, listener = open_stream(engine, seed=0), open_stream(engine, seed=1)
    engine.add_chunk(TokenChunk(listener, 0, tokens_of(18, 0), False))
    engine.step()
    clock.seconds = 0.4  # more than a first audio may take, and the listener has 0.04 s left
    engine.add_chunk(TokenChunk(late, 0, tokens_of(18, 0), False))
    engine.add_chunk(TokenChunk(listener, 1, tokens_of(18, 1), False))
    assert [result.stream_id for _ in range(2) for result in engine.step()] == [listener, late]
    for stream_id in (late, listener):
        engine.abort(stream_id)


def test_a_step_beside_another_takes_the_urgent_chunks_if_it_has_room_for_all() -> None:
    engine = make_engine(ManualClock(), beside=2)
    playing, *new = (open_stream(engine, seed) for seed in range(4))
    engine.add_chunk(TokenChunk(playing, 0, tokens_of(40, 0), False))
    assert not step_beside(engine), "there is no step to run beside"
    engine.step()
    for index in (1, 2):
        engine.add_chunk(TokenChunk(playing, index, tokens_of(18, index), False))
    usual = engine.begin_step()
    assert usual is not None
    assert not step_beside(engine), "nothing is urgent"
    for stream_id in new:
        engine.add_chunk(TokenChunk(stream_id, 0, tokens_of(18, 0), False))
    assert not step_beside(engine), "three are urgent"
    engine.abort(new.pop())
    assert step_beside(engine) == new
    assert [result.stream_id for result in engine.end_step(usual)] == [playing]
    for stream_id in (playing, *new):
        engine.abort(stream_id)


def test_while_many_chunks_wait_those_run_beside_others_who_soon_have_nothing() -> None:
    clock = ManualClock()
    engine = make_engine(clock, beside=2)
    playing = [open_stream(engine, seed) for seed in range(BESIDE_WAITING + 2)]
    for index in range(2):
        for stream_id in playing:
            engine.add_chunk(TokenChunk(stream_id, index, tokens_of(40, 0), False))
        if index == 0:
            engine.step()
    usual, new = engine.begin_step(), open_stream(engine, 1)
    assert usual is not None
    engine.add_chunk(TokenChunk(new, 0, tokens_of(18, 0), False))
    assert not step_beside(engine)
    clock.seconds = FIRST_AUDIO_DUE_S - LATE_S
    assert step_beside(engine) == [new]
    engine.end_step(usual)
    for stream_id in (*playing, new):
        engine.abort(stream_id)


def test_the_next_step_is_launched_shortly_before_one_that_runs_ends() -> None:
    clock = ManualClock()
    engine, took_s = make_engine(clock, max_batch_size=1), (1.0, 3.0)
    streams = [open_stream(engine, seed) for seed in range(BESIDE_WAITING + 4)]
    for stream_id in streams:
        engine.add_chunk(TokenChunk(stream_id, 0, tokens_of(5, 0), True))
    for took in took_s:
        begun = engine.begin_step()
        assert begun is not None
        clock.seconds += took
        engine.end_step(begun)
    begun = engine.begin_step()
    assert begun is not None
    assert engine.rest_s(begun) == pytest.approx(1.1 * LAUNCH_SHARE), "an outlier tells little"
    behind = engine.begin_step()
    assert behind is not None and engine.rest_s(begun) == 0, "it is full, and few wait now"
    engine.end_step(begun)
    engine.end_step(behind)
    for stream_id in streams:
        engine.abort(stream_id)
