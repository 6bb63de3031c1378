"""The engine in any order of opening, pushing, stepping, failing, aborting and idling: nothing is lost or left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from tests.token2wav_service.engine.factory import SeededExtractor, make_prompt
from tests.virtual_time import ManualClock
from tests.workers import is_whole
from token2wav_service.config import Token2WavConfig
from token2wav_service.engine.engine import BegunStep, ChunkResult, Token2WavEngine
from token2wav_service.engine.runner import BesideRoom, ChunkOutcome, ChunkWork, Finish, ModelFacts
from token2wav_service.engine.stream import FIRST_AUDIO_DUE_S
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.errors import CapacityError, InvalidChunkError, StreamNotFoundError, Token2WavError
from token2wav_service.types import AudioChunk, FloatArray, StreamOptions, StreamStatus, TokenChunk, VoiceFeatures

MAX_STREAMS, MAX_BATCH, VOICES = 4, 3, 3
LOOKAHEAD, VOCABULARY, POISON = 3, 100, 99
VOICE_BYTES = 100_000
IDLE_S = 60.0


@dataclass(eq=False)
class PlaceState:
    """A stream's place in its tokens."""

    place: int = 0
    num_bytes: int = 8


@dataclass(frozen=True)
class BareVoice:
    frames: int = 10
    num_bytes: int = VOICE_BYTES


class TellingRunner:
    """Makes a sample a token, which tells token, place and seed; fails where the poison is; counts its states."""

    facts = ModelFacts(VOCABULARY, LOOKAHEAD, 2)
    beside, queues = BesideRoom(2, 0), True

    def __init__(self) -> None:
        self.open_states = 0
        self.meanwhile: Callable[[str], None] = lambda voice_id: None
        """Called while a voice is being made."""

    def prepare_voice(self, features: VoiceFeatures) -> BareVoice:
        self.meanwhile(features.voice_id)
        return BareVoice()

    def open(self, voice: BareVoice) -> PlaceState:
        self.open_states += 1
        return PlaceState()

    def close(self, state: PlaceState) -> None:
        self.open_states -= 1

    def bucket(self, chunk: TokenChunk, state: PlaceState) -> int:
        return len(chunk.token_ids) % 2

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        return min(ready, 2 + bucket)

    def launch(self, works: Sequence[ChunkWork], *, beside: bool = False) -> Finish:
        return partial(self._run, works)

    def _run(self, works: Sequence[ChunkWork]) -> list[ChunkOutcome]:
        if any(POISON in work.token_ids for work in works):
            raise RuntimeError("poisoned")
        return [self._outcome(work) for work in works]

    def _outcome(self, work: ChunkWork) -> ChunkOutcome:
        spoken = work.token_ids[: self.facts.new_tokens(len(work.token_ids), work.is_last)]
        samples = telling(spoken, work.state.place, work.seed)
        return ChunkOutcome(samples, PlaceState(work.state.place + len(spoken)))


def telling(tokens: Sequence[int], place: int, seed: int) -> FloatArray:
    return (np.array(tokens) + 1000.0 * np.arange(place, place + len(tokens)) + 100_000 * seed).astype(np.float32)


@dataclass
class Pushed:
    """What a stream was given, and what its caller has of it."""

    seed: int
    tokens: list[int] = field(default_factory=list)
    chunks: int = 0
    answered: int = 0
    heard: list[FloatArray] = field(default_factory=list)
    is_ended: bool = False
    is_aborted: bool = False
    has_last: bool = False
    lookahead: tuple[int, ...] = ()


good_tokens = st.integers(0, POISON - 1)
fitting = st.lists(good_tokens, min_size=LOOKAHEAD + 1, max_size=6)
any_number = st.lists(good_tokens, max_size=8)


class EngineStates(RuleBasedStateMachine):
    """Every chunk gets one answer, audio is the stream's own, states and voices are given back."""

    streams: Any = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.runner = TellingRunner()
        config = Token2WavConfig(Path("unused"), max_streams=MAX_STREAMS, max_batch_size=MAX_BATCH)
        config = replace(config, idle_timeout_s=IDLE_S, max_chunk_tokens=6)
        model, budget = VoiceModel(lambda: "telling"), 2 * VOICE_BYTES + 50_000
        store = VoiceStore(SeededExtractor(), self.runner, budget, model)  # type: ignore[arg-type]
        self.engine = Token2WavEngine(config, store, self.runner, self.clock)
        self.pushed: dict[str, Pushed] = {}
        self.begun: dict[bool, list[BegunStep]] = {False: [], True: []}
        """Steps that have not ended; beside others, and not."""
        self.new_voices = 0

    @rule(target=streams, voice=st.integers(0, VOICES - 1), seed=st.integers(0, 5), priority=st.integers(1, 10))
    def open(self, voice: int, seed: int, priority: int) -> Any:
        try:
            voice_id = self.engine.voices.register(make_prompt(voice)).voice_id
            stream_id = self.engine.open_stream(voice_id, StreamOptions(seed=seed, priority=priority))
        except CapacityError:
            return multiple()
        self.pushed[stream_id] = Pushed(seed)
        return stream_id

    @rule(target=streams, seed=st.integers(0, 5), chunks=st.lists(fitting, max_size=2), is_made=st.booleans())
    def open_in_a_voice_that_is_being_made(self, seed: int, chunks: list[list[int]], is_made: bool) -> Any:
        opened: list[str] = []

        def meanwhile(voice_id: str) -> None:
            with suppress(CapacityError):
                opened.append(self.engine.open_stream(voice_id, StreamOptions(seed=seed)))
                self.pushed[opened[0]] = Pushed(seed)
                for tokens in chunks:
                    self._push(opened[0], tuple(tokens), False, 0)
                self.counts_agree()
            if not is_made:
                raise RuntimeError("the voice can't be made")

        self.new_voices += 1
        self.runner.meanwhile = meanwhile
        with suppress(CapacityError, RuntimeError):
            self.engine.voices.register(make_prompt(VOICES + self.new_voices))
        self.runner.meanwhile = lambda voice_id: None
        self._begin()
        return opened[0] if opened else multiple()

    def _begin(self) -> None:
        for stream_id, error in self.engine.begin_streams():
            results, summary = self.engine.abort(stream_id, error)
            assert summary is not None and results and all(result.outcome is error for result in results)
            self.pushed[stream_id].is_ended = self.pushed[stream_id].is_aborted = True
            self._take(results)

    @rule(stream_id=streams, tokens=fitting, is_last=st.booleans())
    def push(self, stream_id: str, tokens: list[int], is_last: bool) -> None:
        self._push(stream_id, tuple(tokens), is_last, 0)

    @rule(stream_id=streams, tokens=any_number, is_last=st.booleans(), skips=st.sampled_from([0, 1, -1]))
    def push_what_may_not_fit(self, stream_id: str, tokens: list[int], is_last: bool, skips: int) -> None:
        self._push(stream_id, tuple(tokens), is_last, skips)

    @rule(stream_id=streams, at=st.integers(0, 3))
    def push_poison(self, stream_id: str, at: int) -> None:
        given = [1, 2, 3, 4]
        given[at] = POISON
        self._push(stream_id, tuple(given), False, 0)

    @rule(stream_id=streams, token=st.sampled_from([-1, VOCABULARY]))
    def push_no_token(self, stream_id: str, token: int) -> None:
        pushed = self.pushed[stream_id]
        try:
            self.engine.add_chunk(TokenChunk(stream_id, pushed.chunks, (1, 2, 3, token), False))
        except (InvalidChunkError, StreamNotFoundError):
            return
        raise AssertionError("a token of no vocabulary was taken")

    def _push(self, stream_id: str, given: tuple[int, ...], is_last: bool, skips: int) -> None:
        pushed = self.pushed[stream_id]
        try:
            self.engine.add_chunk(TokenChunk(stream_id, pushed.chunks + skips, given, is_last))
        except (InvalidChunkError, StreamNotFoundError):
            return
        assert not (skips or pushed.is_ended or pushed.has_last)
        pushed.chunks += 1
        pushed.has_last = is_last
        given = given or pushed.lookahead
        pushed.tokens += given if is_last else given[:-LOOKAHEAD]
        pushed.lookahead = given[-LOOKAHEAD:]
        self._begin()

    @rule(beside=st.booleans())
    def begin_step(self, beside: bool) -> None:
        under_way = self.begun[beside]
        if len(under_way) == (1 if beside else 2):
            return
        is_ready, begun = self.engine.ready_streams() > 0, self.engine.begin_step(beside=beside)
        assert is_ready if begun is not None else beside or under_way or not is_ready
        if begun is None:
            return
        assert beside or not under_way or len(begun.works) >= 2, "it is not full"
        if beside:
            assert len(begun.works) <= 2
            assert all(stream.due_s <= self.clock.seconds + FIRST_AUDIO_DUE_S for stream in begun.streams)
        under_way.append(begun)

    @precondition(lambda self: any(self.begun.values()))
    @rule(number=st.integers(0, MAX_BATCH - 1))
    def abort_in_the_step(self, number: int) -> None:
        streams = [stream for begun in chain(*self.begun.values()) for stream in begun.streams]
        self.abort(streams[number % len(streams)].stream_id)

    @rule(beside=st.booleans())
    def end_step(self, beside: bool) -> None:
        if self.begun[beside]:
            self._take(self.engine.end_step(self.begun[beside].pop(0)))

    @precondition(lambda self: not any(self.begun.values()))
    @rule()
    def step(self) -> None:
        self._take(self.engine.step())

    @rule(stream_id=streams)
    def abort(self, stream_id: str) -> None:
        pushed = self.pushed[stream_id]
        results, summary = self.engine.abort(stream_id)
        assert (summary is None) == pushed.is_ended
        pushed.is_ended = pushed.is_aborted = True
        self._take(results)

    @rule(seconds=st.sampled_from([0.1, IDLE_S + 1]))
    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds
        for stream_id in self.engine.idle_streams():
            assert self.pushed[stream_id].answered == self.pushed[stream_id].chunks
            self.abort(stream_id)

    def _take(self, results: Sequence[ChunkResult]) -> None:
        for result in results:
            pushed = self.pushed[result.stream_id]
            pushed.answered += 1
            if isinstance(result.outcome, AudioChunk):
                assert result.index == len(pushed.heard) == pushed.answered - 1
                pushed.heard.append(result.outcome.samples)
            else:
                assert isinstance(result.outcome, Token2WavError)
            if result.ended is not None:
                assert not pushed.is_ended, "a stream ended twice"
                pushed.is_ended = True
                pushed.is_aborted = result.ended.status is StreamStatus.ABORTED
                # What was queued behind a chunk that failed is told by `ended`, see ServingLoop.
                pushed.answered = pushed.chunks if pushed.is_aborted else pushed.answered

    @invariant()
    def counts_agree(self) -> None:
        self.engine.check_integrity()
        open_ids = {stream_id for stream_id, pushed in self.pushed.items() if not pushed.is_ended}
        assert set(self.engine.open_stream_ids()) == open_ids
        assert len(open_ids) <= MAX_STREAMS
        in_step = sum(len(begun.works) for begun in chain(*self.begun.values()))
        waiting = sum(stream.making is not None for stream in self.engine._streams.values())
        assert len(open_ids) - waiting <= self.runner.open_states <= len(open_ids) - waiting + in_step

    @invariant()
    def everybody_hears_their_own(self) -> None:
        for pushed in self.pushed.values():
            if pushed.heard:
                heard = np.concatenate(pushed.heard)
                assert np.array_equal(heard, telling(pushed.tokens[: len(heard)], 0, pushed.seed))
            if pushed.is_ended and not pushed.is_aborted:
                assert sum(map(len, pushed.heard)) == len(pushed.tokens), "audio is missing"

    def teardown(self) -> None:
        for beside in (False, False, True):
            self.end_step(beside)
        for stream_id in self.engine.open_stream_ids():
            self.abort(stream_id)
        self.counts_agree()
        assert self.runner.open_states == 0
        assert all(pushed.answered == pushed.chunks for pushed in self.pushed.values())


TestEngineStates = EngineStates.TestCase
TestEngineStates.settings = settings(max_examples=2000 if is_whole() else 40, stateful_step_count=40, deadline=None)
