"""The offline driver: the same engine as in the service, driven until all streams finish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.token2wav_service.engine.factory import (
    POISON,
    PoisonableRunner,
    audio_of,
    drain,
    make_engine,
    make_prompt,
    tokens_of,
)
from token2wav_service.config import RunnerKind, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import CapacityError, InvalidChunkError, InvalidRequestError, Token2WavError
from token2wav_service.offline import OfflineUtterance, best_chunk_tokens, cut_chunks, synthesize_all
from token2wav_service.types import StreamOptions, TokenChunk, VoicePrompt


def _utterance(name: str, tokens: int, seed: int = 0) -> OfflineUtterance:
    return OfflineUtterance(name, tokens_of(tokens, seed), make_prompt(), StreamOptions(seed))


def _runner(engine: Token2WavEngine) -> PoisonableRunner:
    runner = engine.runner
    assert isinstance(runner, PoisonableRunner)
    return runner


def test_chunks_cover_all_tokens_and_repeat_the_look_ahead_only() -> None:
    tokens = tuple(range(50))
    chunks = cut_chunks(tokens, 20)
    assert chunks == [tokens[:23], tokens[20:43], tokens[40:]]
    assert cut_chunks(tokens[:23], 20) == [tokens[:23]]


def test_the_first_chunk_of_a_block_masked_flow_fits_a_voice_s_usual_start() -> None:
    tokens = tuple(range(250))
    assert [len(chunk) for chunk in cut_chunks(tokens, 100, 25)] == [93, 103, 60], "90 is 15 and three blocks"
    assert [len(chunk) for chunk in cut_chunks(tokens[:50], 10, 25)] == [13, 13, 13, 13, 10], "shorter than the start's"


def test_utterances_run_side_by_side_up_to_the_batch_size() -> None:
    engine = make_engine(max_batch_size=2)
    spoken = list(synthesize_all(engine, [_utterance(name, 10) for name in "abcde"]))
    assert sorted(each.name for each in spoken) == list("abcde")
    assert _runner(engine).batches == [2, 2, 1]
    assert engine.stats().open_streams == 0
    engine.check_integrity()


def test_an_utterance_in_windows_equals_the_same_stream_pushed_by_hand() -> None:
    engine = make_engine()
    utterance = _utterance("a", 50, seed=4)
    (spoken,) = synthesize_all(engine, [utterance], chunk_tokens=20)
    stream_id = engine.open_stream(engine.voices.register(utterance.prompt).voice_id, utterance.options)
    for index, chunk in enumerate(cut_chunks(utterance.token_ids, 20)):
        engine.add_chunk(TokenChunk(stream_id, index, chunk, index == 2))
    assert isinstance(spoken.outcome, np.ndarray)
    assert np.array_equal(spoken.outcome, audio_of(drain(engine), stream_id))
    assert spoken.summary is not None and spoken.summary.chunk_schedule == [23, 23, 10]


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        pytest.param((), InvalidRequestError, id="no tokens"),
        pytest.param((1, 2, 10_000), InvalidChunkError, id="token out of range"),
        pytest.param((1, 2, POISON, 4), Token2WavError, id="the model fails"),
    ],
)
def test_a_bad_utterance_fails_alone(tokens: tuple[int, ...], error: type[Exception]) -> None:
    engine = make_engine()
    utterances = [_utterance("a", 10), OfflineUtterance("bad", tokens, make_prompt()), _utterance("c", 10)]
    outcomes = {each.name: each.outcome for each in synthesize_all(engine, utterances)}
    assert isinstance(outcomes["bad"], error)
    assert isinstance(outcomes["a"], np.ndarray) and isinstance(outcomes["c"], np.ndarray)
    assert engine.stats().open_streams == 0


def test_leaving_early_aborts_what_is_open() -> None:
    engine = make_engine(max_batch_size=2)
    spoken = synthesize_all(engine, [_utterance("a", 10), _utterance("b", 60)], chunk_tokens=10)
    assert next(spoken).name == "a"
    assert engine.stats().open_streams == 1
    spoken.close()  # type: ignore[attr-defined]
    assert engine.stats().open_streams == 0


@pytest.mark.parametrize("chunk_tokens", [0, 1498])
def test_chunks_that_the_engine_would_refuse_are_refused_at_once(chunk_tokens: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 1497"):
        synthesize_all(make_engine(), [], chunk_tokens)


def test_a_voice_that_was_registered_is_not_loaded_again_unless_it_was_evicted() -> None:
    engine = make_engine()
    loaded: list[str] = []

    def load() -> VoicePrompt:
        loaded.append("prompt")
        return make_prompt()

    voice_id = engine.voices.register(make_prompt()).voice_id
    known = OfflineUtterance("a", tokens_of(10, 0), load, voice_id=voice_id)
    evicted = OfflineUtterance("b", tokens_of(10, 0), load, voice_id="gone")
    outcomes = {each.name: each.outcome for each in synthesize_all(engine, [known, evicted])}
    assert loaded == ["prompt"]
    assert np.array_equal(outcomes["a"], outcomes["b"])


def test_an_utterance_whose_voice_has_no_room_waits_for_those_in_use() -> None:
    engine = make_engine(voice_cache_bytes=3 * _voice_bytes() // 2)
    utterances = [OfflineUtterance(str(seed), tokens_of(10, 0), make_prompt(seed)) for seed in range(3)]
    outcomes = [each.outcome for each in synthesize_all(engine, utterances)]
    assert all(isinstance(outcome, np.ndarray) for outcome in outcomes)
    assert _runner(engine).batches == [1, 1, 1]


def test_a_voice_that_never_fits_fails_its_utterance() -> None:
    engine = make_engine(voice_cache_bytes=_voice_bytes() // 2)
    (spoken,) = synthesize_all(engine, [_utterance("a", 10)])
    assert isinstance(spoken.outcome, CapacityError)


@pytest.mark.parametrize(
    ("runner", "tokens"), [(RunnerKind.TORCH, 500), (RunnerKind.SLOTS, 100)], ids=["plain modules", "programs"]
)
def test_chunks_suit_the_runner(runner: RunnerKind, tokens: int) -> None:
    assert best_chunk_tokens(Token2WavConfig(Path("unused"), runner=runner)) == tokens


def _voice_bytes() -> int:
    engine = make_engine()
    engine.voices.register(make_prompt())
    return engine.stats().voice_bytes
