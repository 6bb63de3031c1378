"""The engine's threads: callbacks once each, idle streams, shutdown."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.token2wav_service.engine.factory import POISON, make_engine, make_prompt, tokens_of
from tests.virtual_time import ManualClock
from tests.workers import wait_until
from token2wav_service.contract import ErrorCode
from token2wav_service.engine.engine import BegunStep, ChunkResult
from token2wav_service.engine.loop import FEW_RESULTS, MAX_PENDING_VOICES, REAP_INTERVAL_S, REST_AFTER_S, ServingLoop
from token2wav_service.engine.runner import ChunkOutcome, Finish
from token2wav_service.errors import (
    CapacityError,
    EngineStoppedError,
    InvalidPromptError,
    StreamAbortedError,
    Token2WavError,
)
from token2wav_service.types import AudioChunk, StreamOptions, StreamStatus, StreamSummary, TokenChunk, VoiceFeatures

WAIT_S = 30.0


class Listener:
    """Collects what a loop calls back."""

    def __init__(self, loop: ServingLoop, voice_id: str | None = None) -> None:
        self.loop = loop
        self.results: queue.Queue[AudioChunk | Token2WavError] = queue.Queue()
        self.ends: queue.Queue[StreamSummary] = queue.Queue()
        self.voice_id = voice_id or loop.register_voice(make_prompt).result(WAIT_S).voice_id
        self.stream_id = loop.open_stream(self.voice_id, StreamOptions(), self.ends.put)

    def push(self, index: int, count: int, last: bool) -> None:
        self.loop.push(TokenChunk(self.stream_id, index, tokens_of(count, index), last), self.results.put)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def loop(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[ServingLoop]:
    loop = ServingLoop(make_engine(clock, beside=getattr(request, "param", 0)))
    loop.start()
    yield loop
    loop.stop()
    assert loop.stats().open_streams == 0


def started(**engine: Any) -> tuple[ServingLoop, queue.Queue[Exception]]:
    """Return a running loop, and what it ends by."""
    failures: queue.Queue[Exception] = queue.Queue()
    loop = ServingLoop(make_engine(**engine), failures.put)
    loop.start()
    return loop, failures


class Crowd:
    """So many listeners whose first chunks run in one step, and one more; answering the first takes its time."""

    def __init__(self, loop: ServingLoop, listeners: int) -> None:
        self.loop = loop
        self.other = Listener(loop)
        self.listeners = [Listener(loop) for _ in range(listeners)]
        self.may_answer = threading.Event()
        self._runs, self._may_run = threading.Event(), threading.Event()
        runner = loop.engine.runner
        self._run = runner.run
        runner.run = self._held_run  # type: ignore[method-assign]
        self.other.push(0, 18, False)
        assert self._runs.wait(WAIT_S)
        first, *others = self.listeners
        tokens = tokens_of(18, 0)
        loop.push(TokenChunk(first.stream_id, 0, tokens, True), lambda result: self._answer(first, result))
        for listener in others:
            listener.push(0, 18, True)
        self._may_run.set()
        assert isinstance(self.other.results.get(timeout=WAIT_S), AudioChunk)

    def _held_run(self, works: Any, *, beside: bool = False) -> Any:
        self._runs.set()
        assert self._may_run.wait(WAIT_S)
        return self._run(works)

    def _answer(self, listener: Listener, result: Any) -> None:
        assert self.may_answer.wait(WAIT_S)
        listener.results.put(result)

    def check(self) -> None:
        """Every listener gets its audio and its end, once."""
        for listener in self.listeners:
            assert isinstance(listener.results.get(timeout=WAIT_S), AudioChunk)
            assert listener.ends.get(timeout=WAIT_S).status is StreamStatus.FINISHED
            assert listener.results.empty() and listener.ends.empty()


def test_the_next_step_runs_while_many_callers_are_answered(loop: ServingLoop) -> None:
    crowd = Crowd(loop, FEW_RESULTS + 1)
    wait_until(lambda: loop.stats().chunks == FEW_RESULTS + 2, "the crowd's step")
    crowd.other.push(1, 10, True)
    wait_until(lambda: loop.stats().chunks == FEW_RESULTS + 3, "the next step")
    assert crowd.other.results.empty(), "results of a later step overtake none"
    crowd.may_answer.set()
    crowd.check()
    assert isinstance(crowd.other.results.get(timeout=WAIT_S), AudioChunk)


class HeldStep:
    """A listener's second chunk, whose step is held until it may run."""

    def __init__(self, loop: ServingLoop) -> None:
        self.may_run, runs, launch = threading.Event(), threading.Event(), loop.engine.runner.launch
        self.done: list[str] = []
        self.listener = Listener(loop)
        self.listener.push(0, 40, False)
        assert isinstance(self.listener.results.get(timeout=WAIT_S), AudioChunk)

        def held(finish: Finish) -> list[ChunkOutcome]:
            self.done.append("end")
            runs.set()
            assert self.may_run.wait(WAIT_S)
            return finish()

        def held_launch(works: Any, *, beside: bool = False) -> Finish:
            self.done.append("launch")
            finish = launch(works, beside=beside)
            return finish if beside else partial(held, finish)

        loop.engine.runner.launch = held_launch  # type: ignore[method-assign]
        self.listener.push(1, 18, True)
        assert runs.wait(WAIT_S)


@pytest.mark.parametrize("loop", [2], indirect=True)
def test_urgent_chunks_do_not_wait_for_the_step_of_others(loop: ServingLoop) -> None:
    held, new = HeldStep(loop), Listener(loop)
    for index, is_last in ((0, False), (1, True)):  # a first chunk, and one whose listener has 0.2 s left to play
        new.push(index, 12, is_last)
        assert isinstance(new.results.get(timeout=WAIT_S), AudioChunk)
    assert new.ends.get(timeout=WAIT_S).status is StreamStatus.FINISHED
    assert held.listener.results.empty()
    held.may_run.set()
    assert isinstance(held.listener.results.get(timeout=WAIT_S), AudioChunk)
    assert held.listener.ends.get(timeout=WAIT_S).status is StreamStatus.FINISHED


def test_a_full_step_is_launched_while_another_one_runs(clock: ManualClock) -> None:
    engine = make_engine(clock, max_batch_size=2)
    engine.runner.queues = True
    loop = ServingLoop(engine)
    loop.start()
    held, others = HeldStep(loop), [Listener(loop) for _ in range(4)]
    for other in others:
        other.push(0, 18, True)
    held.may_run.set()
    for listener in (held.listener, *others):
        assert isinstance(listener.results.get(timeout=WAIT_S), AudioChunk)
        assert listener.ends.get(timeout=WAIT_S).status is StreamStatus.FINISHED
    assert held.done == ["launch", "end", "launch", "launch", "end", "end"]
    loop.stop()


def test_an_error_in_the_thread_of_urgent_chunks_is_fatal_too() -> None:
    loop, failures = started(beside=2)
    held, new, end_step = HeldStep(loop), Listener(loop), loop.engine.end_step

    def break_off(begun: BegunStep) -> list[ChunkResult]:
        if begun.beside:
            held.may_run.set()
            raise AssertionError("broken books")
        return end_step(begun)

    loop.engine.end_step = break_off  # type: ignore[method-assign]
    new.push(0, 18, True)
    assert "broken books" in str(failures.get(timeout=WAIT_S))
    assert isinstance(new.results.get(timeout=WAIT_S), EngineStoppedError)
    loop.stop()


def test_an_error_in_the_second_thread_is_fatal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, failures = started()
    end = loop._end

    def break_off(summary: StreamSummary) -> None:
        if threading.current_thread() is loop._messenger:
            raise AssertionError("broken books")
        end(summary)

    monkeypatch.setattr(loop, "_end", break_off)
    crowd = Crowd(loop, FEW_RESULTS + 1)
    crowd.may_answer.set()
    assert "broken books" in str(failures.get(timeout=WAIT_S))
    outcomes = [listener.results.get(timeout=WAIT_S) for listener in crowd.listeners]
    assert isinstance(outcomes[0], AudioChunk) and isinstance(outcomes[-1], EngineStoppedError)
    loop.stop()


def test_stop_delivers_what_was_made(loop: ServingLoop) -> None:
    crowd = Crowd(loop, FEW_RESULTS + 1)
    wait_until(lambda: loop.stats().chunks == FEW_RESULTS + 2, "the crowd's step")
    stopper = threading.Thread(target=loop.stop)
    stopper.start()
    crowd.may_answer.set()
    crowd.check()
    stopper.join(WAIT_S)
    assert crowd.other.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED


def test_abort_answers_every_waiting_chunk(loop: ServingLoop) -> None:
    listener = Listener(loop)
    for index in range(6):
        listener.push(index, 18, False)
    loop.abort(listener.stream_id)
    outcomes = [listener.results.get(timeout=WAIT_S) for _ in range(6)]
    assert isinstance(outcomes[-1], StreamAbortedError)
    assert listener.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED


class Making:
    """A voice that is being made until `end`, and a listener who waits for it with a chunk."""

    def __init__(self, loop: ServingLoop, fails_with: Exception | None = None) -> None:
        self.end, heard = threading.Event(), queue.SimpleQueue[str]()
        prepare = loop.engine.runner.prepare_voice

        def held_up(features: VoiceFeatures) -> Any:
            assert self.end.wait(WAIT_S)
            if fails_with is not None:
                raise fails_with
            return prepare(features)

        loop.engine.runner.prepare_voice = held_up  # type: ignore[method-assign]
        self.made = loop.register_voice(make_prompt, on_heard=lambda voice_id, *_: heard.put(voice_id))
        self.listener = Listener(loop, heard.get(timeout=WAIT_S))
        self.listener.push(0, 18, False)


def test_a_chunk_waits_for_its_streams_voice_and_that_is_not_the_engines_time(
    loop: ServingLoop, clock: ManualClock
) -> None:
    making = Making(loop)
    loop.engine.check_integrity()
    assert (loop.stats().open_streams, loop.stats().state_bytes) == (1, 0)
    clock.seconds += 10.0
    making.end.set()
    audio = making.listener.results.get(timeout=WAIT_S)
    assert isinstance(audio, AudioChunk) and audio.timing is not None and audio.timing.queue_s == 0.0
    making.listener.push(1, 18, True)
    assert making.listener.ends.get(timeout=WAIT_S).status is StreamStatus.FINISHED
    loop.engine.check_integrity()


@pytest.mark.parametrize("error", [CapacityError("no room for it"), RuntimeError("no room for it")])
def test_a_stream_whose_voice_cant_be_made_ends_with_its_first_chunk(loop: ServingLoop, error: Exception) -> None:
    making = Making(loop, error)
    early = Listener(loop, making.listener.voice_id)
    making.end.set()
    making.listener.ends.get(timeout=WAIT_S)
    early.push(0, 18, False)
    for listener in (making.listener, early):
        failed = listener.results.get(timeout=WAIT_S)
        assert isinstance(failed, Token2WavError) and "no room for it" in str(failed)
        assert failed.code is getattr(error, "code", ErrorCode.INTERNAL)
    assert early.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED


@pytest.mark.parametrize("stops", [False, True])
def test_a_stream_that_waits_for_its_voice_can_be_aborted_and_holds_nothing(loop: ServingLoop, stops: bool) -> None:
    making = Making(loop)
    if stops:
        stopper = threading.Thread(target=loop.stop)
        stopper.start()
    else:
        loop.abort(making.listener.stream_id)
    assert isinstance(making.listener.results.get(timeout=WAIT_S), Token2WavError)
    assert making.listener.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED
    making.end.set()
    making.made.result(WAIT_S)
    if stops:
        stopper.join(WAIT_S)
    loop.engine.check_integrity()
    assert loop.engine.voices.cache.stats().pinned_voices == loop.stats().open_streams == 0


def test_a_failed_chunk_answers_those_behind_it(loop: ServingLoop) -> None:
    listener = Listener(loop)
    blocker = threading.Event()
    loop.push(
        TokenChunk(listener.stream_id, 0, tokens_of(18, 0), False),
        lambda result: (blocker.wait(WAIT_S), listener.results.put(result))[1],
    )
    loop.push(TokenChunk(listener.stream_id, 1, (POISON, 1, 2, 3), False), listener.results.put)
    listener.push(2, 18, True)
    blocker.set()
    first, failed, dropped = (listener.results.get(timeout=WAIT_S) for _ in range(3))
    assert isinstance(first, AudioChunk)
    assert "poisoned" in str(failed) and "ended before this chunk ran" in str(dropped)
    assert listener.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED


def test_the_engine_rests_once_after_its_work_and_not_while_a_stream_is_open(clock: ManualClock) -> None:
    rests: queue.Queue[float] = queue.Queue()
    loop = ServingLoop(make_engine(clock), on_rest=lambda: rests.put(clock.seconds))
    loop.start()
    try:
        listener = Listener(loop)
        listener.push(0, 18, False)
        listener.results.get(timeout=WAIT_S)
        clock.seconds += 2 * REST_AFTER_S  # far less than an idle stream is kept open
        listener.push(1, 10, True)
        listener.ends.get(timeout=WAIT_S)
        assert rests.empty()
        clock.seconds += 2 * REST_AFTER_S
        assert rests.get(timeout=WAIT_S) == clock.seconds
        clock.seconds += 2 * REST_AFTER_S
        Listener(loop, loop.register_voice(make_prompt).result(WAIT_S).voice_id)
        assert rests.empty()
    finally:
        loop.stop()


def test_an_idle_stream_is_aborted_under_load_too(loop: ServingLoop, clock: ManualClock) -> None:
    idle, busy = Listener(loop), Listener(loop)
    ended_under_load = threading.Event()

    def push(index: int) -> None:
        """Keep one chunk more in the queue whenever one is done, so that the engine always has work."""
        if not idle.ends.empty():
            ended_under_load.set()
        else:
            clock.seconds += REAP_INTERVAL_S
            loop.push(TokenChunk(busy.stream_id, index, tokens_of(8, index), False), lambda _: push(index + 2))

    clock.seconds += loop.engine.config.idle_timeout_s - 2 * REAP_INTERVAL_S
    for index in range(2):
        push(index)
    assert ended_under_load.wait(WAIT_S)
    assert idle.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED


def test_an_engine_that_fails_answers_everybody_and_says_so() -> None:
    loop, failures = started()
    speaking, waiting = Listener(loop), Listener(loop)
    run, may_fail = loop.engine.runner.run, threading.Event()

    def close(state: object) -> None:
        raise AssertionError("free without allocate")

    def held_run(works: Any) -> Any:
        assert may_fail.wait(WAIT_S)
        return run(works)

    loop.engine.runner.close, loop.engine.runner.run = close, held_run  # type: ignore[method-assign]
    speaking.push(0, 18, True)
    waiting.push(0, 18, False)
    waiting.push(1, 18, False)
    may_fail.set()
    assert isinstance(speaking.results.get(timeout=WAIT_S), EngineStoppedError)
    last = [waiting.results.get(timeout=WAIT_S) for _ in range(2)][-1]
    assert isinstance(last, EngineStoppedError)
    for listener in (speaking, waiting):
        assert listener.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED
    assert "free without allocate" in str(failures.get(timeout=WAIT_S))
    assert loop.status().is_draining
    loop.stop()
    assert failures.empty() and speaking.ends.empty()


def _lost() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_lost_gpu_is_fatal_and_a_failed_chunk_is_not() -> None:
    loop, failures = started(probe_device=_lost)
    good, bad = Listener(loop), Listener(loop)
    good.push(0, 18, False)
    assert isinstance(good.results.get(timeout=WAIT_S), AudioChunk)
    loop.push(TokenChunk(bad.stream_id, 0, (POISON, 1, 2, 3), False), bad.results.put)
    assert isinstance(bad.results.get(timeout=WAIT_S), EngineStoppedError)
    assert "illegal memory access" in str(failures.get(timeout=WAIT_S))
    with pytest.raises(EngineStoppedError):
        good.push(1, 18, False)
    loop.stop()


def test_a_gpu_that_is_lost_in_the_making_of_a_voice_is_fatal() -> None:
    loop, failures = started(probe_device=_lost)

    def extract(*args: object) -> object:
        raise RuntimeError("CUDA error")

    loop.engine.voices._extractor.extract = extract  # type: ignore[method-assign, assignment]
    with pytest.raises(EngineStoppedError, match="illegal memory access"):
        loop.register_voice(make_prompt).result(WAIT_S)
    assert "illegal memory access" in str(failures.get(timeout=WAIT_S))
    assert loop.status().is_draining
    loop.stop()


def test_voices_that_nobody_wants_are_not_made_and_too_many_are_refused(loop: ServingLoop) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def is_wanted() -> bool:
        begun.set()
        return go_on.wait(WAIT_S)

    first = loop.register_voice(lambda: make_prompt(0), is_wanted)
    assert begun.wait(WAIT_S)
    unwanted = [loop.register_voice(make_prompt, lambda: False) for _ in range(1, MAX_PENDING_VOICES)]
    with pytest.raises(CapacityError, match="retry later"):
        loop.register_voice(lambda: make_prompt(MAX_PENDING_VOICES))
    go_on.set()
    first.result(WAIT_S)
    for future in unwanted:
        with pytest.raises(StreamAbortedError):
            future.result(WAIT_S)
    loop.register_voice(lambda: make_prompt(MAX_PENDING_VOICES)).result(WAIT_S)
    assert loop.stats().voices == 2


def test_stop_ends_streams_and_refuses_later_calls() -> None:
    loop, failures = started()
    listener = Listener(loop)
    assert not loop.status().is_draining
    loop.stop()
    assert failures.empty() and loop.status().is_draining
    assert listener.ends.get(timeout=WAIT_S).status is StreamStatus.ABORTED
    with pytest.raises(EngineStoppedError, match="shutting down"):
        listener.push(0, 18, False)
    with pytest.raises(EngineStoppedError):
        loop.register_voice(make_prompt)


def test_a_callback_that_raises_harms_nobody(loop: ServingLoop) -> None:
    def explode(result: object) -> None:
        raise RuntimeError("caller's own fault")

    first, second = Listener(loop), Listener(loop)
    loop.push(TokenChunk(first.stream_id, 0, tokens_of(18, 0), True), explode)
    second.push(0, 18, True)
    assert isinstance(second.results.get(timeout=WAIT_S), AudioChunk)
    assert first.ends.get(timeout=WAIT_S).status is StreamStatus.FINISHED


def test_a_bad_prompt_fails_its_future_only(loop: ServingLoop) -> None:
    silent = make_prompt()
    with pytest.raises(InvalidPromptError):
        loop.register_voice(lambda: type(silent)(silent.samples * 0)).result(WAIT_S)
    assert loop.stats().voices == 0
