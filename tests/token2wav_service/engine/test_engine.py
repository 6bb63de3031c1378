"""The engine on a small real model: batching, isolation, edge cases, and what every exit leaves behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.token2wav_service.engine.factory import (
    audio_of,
    drain,
    make_engine,
    open_stream,
    push_all,
    tokens_of,
)
from token2wav_service.contract import SAMPLES_PER_TOKEN
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import (
    CapacityError,
    InvalidChunkError,
    InvalidRequestError,
    VoiceNotCachedError,
)
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db
from token2wav_service.types import StreamOptions, StreamStatus, TokenChunk


def _assert_empty(engine: Token2WavEngine) -> None:
    stats = engine.stats()
    assert (stats.open_streams, stats.state_bytes) == (0, 0)
    assert engine.voices.cache.stats().pinned_voices == 0
    engine.check_integrity()


def _alone(seed: int, tokens: int, hop: int) -> np.ndarray:  # type: ignore[type-arg]
    engine = make_engine()
    stream = open_stream(engine, seed)
    push_all(engine, stream, tokens_of(tokens, seed), hop)
    return audio_of(drain(engine), stream)


@pytest.mark.slow
def test_eight_mixed_streams_share_steps_and_equal_eight_singles() -> None:
    engine = make_engine()
    plans = [(40 + 7 * i, (15, 10, 25, 8)[i % 4]) for i in range(8)]
    streams = [open_stream(engine, i) for i in range(8)]
    for i, stream in enumerate(streams):
        push_all(engine, stream, tokens_of(plans[i][0], i), plans[i][1])
    results = drain(engine)
    for i, stream in enumerate(streams):
        audio = audio_of(results, stream)
        assert audio.shape == (plans[i][0] * SAMPLES_PER_TOKEN,)
        assert snr_db(torch.from_numpy(audio), torch.from_numpy(_alone(i, *plans[i]))) >= WAVE_SNR_DB
    assert engine.stats().batch_size_histogram[8] >= 1
    _assert_empty(engine)


def test_the_summary_records_the_chunk_schedule() -> None:
    engine = make_engine()
    stream = open_stream(engine, seed=5)
    push_all(engine, stream, tokens_of(50, 0), 15)
    (summary,) = [result.ended for result in drain(engine) if result.ended]
    assert summary.status is StreamStatus.FINISHED
    assert (summary.chunk_schedule, summary.seed) == ([18, 18, 18, 5], 5)
    assert summary.samples == 50 * SAMPLES_PER_TOKEN


@pytest.mark.parametrize(
    ("windows", "spoken"),
    [
        pytest.param([(4, False), (4, False), (4, False), (3, True)], 6, id="one-token hops"),
        pytest.param([(1, True)], 1, id="one-token last chunk"),
        pytest.param([(18, False), (1, True)], 16, id="one-token last chunk after another"),
        pytest.param([(18, False), (0, True)], 18, id="empty last chunk speaks the look-ahead"),
        pytest.param([(5, False), (30, True)], 32, id="first chunk shorter than the vocoder's overlap"),
    ],
)
def test_edge_case_chunks_work_and_lose_nothing(windows: list[tuple[int, bool]], spoken: int) -> None:
    engine = make_engine()
    stream = open_stream(engine)
    for index, (count, last) in enumerate(windows):
        engine.add_chunk(TokenChunk(stream, index, tokens_of(count, index), last))
    audio = audio_of(drain(engine), stream)
    assert audio.shape == (spoken * SAMPLES_PER_TOKEN,)
    assert np.isfinite(audio).all() and np.abs(audio).max() > 0
    _assert_empty(engine)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        pytest.param(((-1, 2, 3, 4, 5), 1, False), r"got speech token -1, expected 0\.\.", id="negative id"),
        pytest.param(((1, 2, 3, 6561, 5), 1, False), "got speech token 6561", id="id beyond the vocabulary"),
        pytest.param(((1, 2, 3), 1, False), "got 3 tokens, expected at least 4", id="look-ahead only"),
        pytest.param(((1, 2, 3, 4), 2, False), "got chunk 2, expected 1", id="wrong index"),
        pytest.param((tuple([1] * 2000), 1, True), "expected at most 1500", id="too long"),
    ],
)
def test_a_refused_chunk_changes_nothing(chunk: tuple[tuple[int, ...], int, bool], message: str) -> None:
    engine = make_engine()
    stream = open_stream(engine, 1)
    tokens = tokens_of(40, 1)
    engine.add_chunk(TokenChunk(stream, 0, tokens[:18], False))
    with pytest.raises(InvalidChunkError, match=message):
        engine.add_chunk(TokenChunk(stream, chunk[1], chunk[0], chunk[2]))
    engine.add_chunk(TokenChunk(stream, 1, tokens[15:33], False))
    engine.add_chunk(TokenChunk(stream, 2, tokens[30:], True))
    np.testing.assert_array_equal(audio_of(drain(engine), stream), _alone(1, 40, 15))


def test_open_refuses_unknown_voices_full_engines_and_bad_options() -> None:
    engine = make_engine(max_streams=1)
    with pytest.raises(VoiceNotCachedError, match="register its prompt again"):
        engine.open_stream("nobody", StreamOptions())
    stream = open_stream(engine)
    with pytest.raises(CapacityError, match="1 streams are open"):
        open_stream(engine)
    engine.abort(stream)
    for options in (StreamOptions(seed=-1), StreamOptions(priority=0), StreamOptions(priority=11)):
        with pytest.raises(InvalidRequestError, match=r"got (seed|priority)"):
            engine.open_stream("any", options)
    _assert_empty(engine)
