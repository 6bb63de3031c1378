"""CosyVoice2's and CosyVoice3's flows and vocoders in the engine: chunks in, gapless audio out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.token2wav_service.engine.factory import MODEL_VERSION, SeededExtractor, make_prompt, push, tokens_of
from tests.token2wav_service.streaming.family_factory import BLOCK, COSYVOICE, make_block_flow, make_causal_hift
from tests.token2wav_service.streaming.flow_factory import make_hift
from tests.virtual_time import ManualClock
from token2wav_service.checkpoint.family import Family
from token2wav_service.config import HistoryPolicy, SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.runner import ChunkWork
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.models.flow.flow_stream import MAX_STARTS, StreamFlow
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import AudioChunk, FloatArray, StreamOptions

SPEAKER_DIMENSIONS = 192
SAMPLES_PER_TOKEN = 960
HELD_BACK = {Family.COSYVOICE2: 8 * 480, Family.COSYVOICE3: 4 * 480 + 4}
"""Samples that a vocoder keeps until the last chunk."""


class WideExtractor(SeededExtractor):
    """Speaker embeddings of the official width."""

    def extract(self, prompt, on_tokens=lambda tokens: None):  # type: ignore[no-untyped-def]
        features = super().extract(prompt, on_tokens)
        wide = np.random.default_rng(len(features.prompt_tokens)).standard_normal(SPEAKER_DIMENSIONS, np.float32)
        return replace(features, speaker_embedding=wide)


@cache
def _vocoder(family: Family, policy: SynthesisPolicy):  # type: ignore[no-untyped-def]
    if family is Family.COSYVOICE3:
        return CausalStreamVocoder(fold_weight_norm(make_causal_hift()), policy)
    return StreamVocoder(fold_weight_norm(make_hift()), policy)


class NoState:
    num_bytes = 0


class MelVocoder:
    """Gives out the mel's mean, so that two flows can be compared without a vocoder's own joins."""

    def initial_state(self) -> NoState:
        return NoState()

    def vocode(self, rows):  # type: ignore[no-untyped-def]
        return [row.mel.mean(0).repeat_interleave(480) for row in rows], [NoState() for _ in rows]


def make_engine(family: Family, policy: SynthesisPolicy | None = None, vocoder=None) -> Token2WavEngine:  # type: ignore[no-untyped-def]
    policy = policy or SynthesisPolicy(ode_steps=2)
    config = Token2WavConfig(Path("unused"), synthesis=policy)
    runner = ModelRunner(StreamFlow(make_block_flow(family), policy), vocoder or _vocoder(family, policy))
    model = VoiceModel(lambda: MODEL_VERSION, speaker_dimensions=SPEAKER_DIMENSIONS)
    voices = VoiceStore(WideExtractor(), runner, config.voice_cache_bytes, model)
    return Token2WavEngine(config, voices, runner, ManualClock())


def open_stream(engine: Token2WavEngine, seed: int, prompt_tokens: int = 27) -> str:
    voice = engine.voices.register(make_prompt(seed, prompt_tokens))
    return engine.open_stream(voice.voice_id, StreamOptions(seed=seed))


def run(engine: Token2WavEngine) -> dict[str, list[FloatArray]]:
    """Step until nothing is left; returns every stream's chunks."""
    heard: dict[str, list[FloatArray]] = {}
    while engine.ready_streams():
        for result in engine.step():
            assert isinstance(result.outcome, AudioChunk), result.outcome
            heard.setdefault(result.stream_id, []).append(result.outcome.samples)
    engine.check_integrity()
    return heard


def speak(engine: Token2WavEngine, tokens: tuple[int, ...], hops: list[int], seed: int = 1) -> list[FloatArray]:
    stream_id = open_stream(engine, seed)
    push(engine, stream_id, tokens, hops)
    return run(engine)[stream_id]


@pytest.mark.parametrize("family", COSYVOICE)
def test_a_stream_is_as_long_as_its_tokens(family: Family) -> None:
    chunks = speak(make_engine(family), tokens_of(40), [7, BLOCK, BLOCK])
    assert sum(map(len, chunks)) == 40 * SAMPLES_PER_TOKEN
    assert len(chunks[0]) == 7 * SAMPLES_PER_TOKEN - HELD_BACK[family]


@pytest.mark.slow
@pytest.mark.parametrize("family", COSYVOICE)
def test_aligned_chunks_equal_one_chunk_after_the_same_prompt(family: Family) -> None:
    """A first hop of 7 and one of 37 leave away as much of the prompt: 37 = 7 + 3 blocks."""
    engine, tokens = make_engine(family, vocoder=MelVocoder()), tokens_of(45)
    streamed = np.concatenate(speak(engine, tokens, [7, BLOCK, BLOCK, BLOCK]))
    whole = np.concatenate(speak(engine, tokens, [37]))
    np.testing.assert_allclose(streamed, whole, atol=1e-4)
    unaligned = np.concatenate(speak(engine, tokens, [8, BLOCK, BLOCK, BLOCK]))
    assert np.abs(unaligned[: len(whole)] - whole[: len(unaligned)]).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", COSYVOICE)
def test_a_voice_keeps_few_starts_and_counts_them(family: Family) -> None:
    engine = make_engine(family)
    for hop in (5, 6, 7, 8, 5):
        speak(engine, tokens_of(30), [hop])
    used = engine.voices.cache.stats().used_bytes
    voice = engine.voices.register(make_prompt(1, 27))
    prompt = engine.voices.cache.acquire(voice.voice_id).state
    assert len(prompt.starts) == MAX_STARTS
    assert sum(start.num_bytes for start in prompt.starts.values()) <= 1.5 * used


@pytest.mark.slow
@pytest.mark.parametrize("family", COSYVOICE)
def test_speech_of_one_chunk_runs_no_prompt_again(family: Family) -> None:
    engine = make_engine(family)
    for tokens in (8, 9, 21):
        speak(engine, tokens_of(tokens), [])
    voice = engine.voices.register(make_prompt(1, 27))
    assert len(engine.voices.cache.acquire(voice.voice_id).state.starts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", COSYVOICE)
def test_the_state_of_a_long_stream_does_not_grow(family: Family) -> None:
    policy = SynthesisPolicy(ode_steps=1, history=HistoryPolicy.PROMPT_AND_RECENT, estimator_recent_frames=8 * BLOCK)
    flow = StreamFlow(make_block_flow(family), policy)
    runner = ModelRunner(flow, _vocoder(family, policy))
    engine = make_engine(family, policy)
    features = engine.voices.register(make_prompt(1, 27))
    state = runner.open(runner.prepare_voice(features))
    sizes = []
    for _ in range(8):
        (outcome,) = runner.run([ChunkWork(tokens_of(BLOCK + 3), False, 1, state)])
        assert np.isfinite(outcome.samples).all()
        state = outcome.state
        sizes.append(state.num_bytes)
    assert sizes[4] > sizes[0]
    assert sizes[-1] == sizes[-2] == sizes[-3]
    assert state.flow.caches["solver_kv"].shape[-2] == 2 * (BLOCK + 4 * BLOCK)


@pytest.mark.parametrize("family", COSYVOICE)
def test_the_server_says_how_long_hops_should_be(family: Family) -> None:
    assert make_engine(family).status().hop_multiple == BLOCK
