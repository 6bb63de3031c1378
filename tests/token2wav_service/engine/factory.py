"""A small real engine on the CPU, with a scripted clock and a feature extractor that needs no ONNX files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from servicekit.clock import Clock
from tests.token2wav_service.streaming.flow_factory import VOCAB, make_flow, make_hift
from tests.virtual_time import ManualClock
from token2wav_service.config import SynthesisPolicy, Token2WavConfig
from token2wav_service.engine.engine import ChunkResult, Token2WavEngine
from token2wav_service.engine.runner import BesideRoom, ChunkOutcome, ChunkWork, Runner
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.features.prompt_models import OnTokens
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.runtime.torch_runner import ModelRunner
from token2wav_service.types import AudioChunk, FloatArray, StreamOptions, TokenChunk, VoiceFeatures, VoicePrompt

POISON = 66
"""A token that makes `PoisonableRunner` fail."""
MODEL_VERSION = "model-1"
SPEAKER_DIMENSIONS = 16


class SeededExtractor:
    """Features drawn from the prompt's hash."""

    def extract(self, prompt: VoicePrompt, on_tokens: OnTokens = lambda tokens: None) -> VoiceFeatures:
        digest = hashlib.sha256(prompt.samples.tobytes()).hexdigest()
        rng = np.random.default_rng(int(digest[:8], 16))
        tokens = len(prompt.samples) // 640
        ids = rng.integers(0, VOCAB, tokens)
        on_tokens(ids)
        return VoiceFeatures(
            voice_id=digest,
            prompt_tokens=ids,
            prompt_mel=rng.standard_normal((2 * tokens, 80), dtype=np.float32),
            speaker_embedding=rng.standard_normal(SPEAKER_DIMENSIONS, dtype=np.float32),
        )


class PoisonableRunner(ModelRunner):
    """Fails any batch that holds the poison token, and counts its batches."""

    batches: list[int]

    def run(self, works: Sequence[ChunkWork]) -> list[ChunkOutcome]:
        self.batches.append(len(works))
        if any(POISON in work.token_ids for work in works):
            raise RuntimeError("poisoned")
        return super().run(works)


@cache
def _models() -> tuple[Flow, HiFT]:
    """Weights that all engines of these tests read, folded as in a service."""
    return make_flow(), fold_weight_norm(make_hift())


def make_engine(
    clock: Clock | None = None,
    probe_device: Callable[[], None] = lambda: None,
    *,
    is_realtime: bool = False,
    beside: int = 0,
    **changes: object,
) -> Token2WavEngine:
    """Make an engine; `beside`: chunks that its runner takes beside others in a step."""
    policy = changes.pop("synthesis", SynthesisPolicy(ode_steps=2))
    config = replace(Token2WavConfig(Path("unused"), synthesis=policy), **changes)  # type: ignore[arg-type]
    flow, hift = _models()
    runner = PoisonableRunner(StreamFlow(flow, config.synthesis), StreamVocoder(hift, config.synthesis))
    runner.batches, runner.beside = [], BesideRoom(beside, 0) if beside else None
    model = VoiceModel(lambda: MODEL_VERSION, speaker_dimensions=SPEAKER_DIMENSIONS)
    voices = VoiceStore(SeededExtractor(), runner, config.voice_cache_bytes, model)
    return Token2WavEngine(config, voices, runner, clock or ManualClock(), probe_device, is_realtime=is_realtime)


def make_prompt(seed: int = 0, tokens: int = 25) -> VoicePrompt:
    rng = np.random.default_rng(seed)
    return VoicePrompt(0.1 * rng.standard_normal(640 * tokens, dtype=np.float32))


def open_stream(engine: Token2WavEngine, seed: int = 0, priority: int = 10) -> str:
    voice_id = engine.voices.register(make_prompt(seed % 3)).voice_id
    return engine.open_stream(voice_id, StreamOptions(seed=seed, priority=priority))


def tokens_of(count: int, seed: int = 3) -> tuple[int, ...]:
    drawn = np.random.default_rng(seed).integers(0, POISON, count)
    return tuple(int(token) for token in drawn)


def push(engine: Token2WavEngine, stream_id: str, tokens: tuple[int, ...], hops: list[int]) -> None:
    """Push chunks that speak `hops` tokens, and the rest as the last one."""
    start = 0
    for index, hop in enumerate(hops):
        engine.add_chunk(TokenChunk(stream_id, index, tokens[start : start + hop + 3], False))
        start += hop
    engine.add_chunk(TokenChunk(stream_id, len(hops), tokens[start:], True))


def push_all(engine: Token2WavEngine, stream_id: str, tokens: tuple[int, ...], hop: int) -> int:
    """Push every window of an equal-hop schedule; returns their number."""
    hops = [hop] * ((len(tokens) - 3) // hop)
    push(engine, stream_id, tokens, hops)
    return len(hops) + 1


def drain(engine: Token2WavEngine) -> list[ChunkResult]:
    results = []
    while made := engine.step():
        results += made
    return results


def step_beside(engine: Token2WavEngine) -> list[str]:
    """Run urgent chunks beside the running step; returns their streams."""
    begun = engine.begin_step(beside=True)
    return [] if begun is None else [result.stream_id for result in engine.end_step(begun)]


def audio_of(results: list[ChunkResult], stream_id: str) -> FloatArray:
    chunks = [r.outcome for r in results if r.stream_id == stream_id]
    assert all(isinstance(chunk, AudioChunk) for chunk in chunks), chunks
    return np.concatenate([chunk.samples for chunk in chunks if isinstance(chunk, AudioChunk)])


def run_step(
    runner: Runner,
    chunks: Sequence[tuple[tuple[int, ...], bool]],
    states: Sequence[object],
    seed: int = 0,
    *,
    beside: bool = False,
) -> list[FloatArray]:
    """Run a chunk of every stream in one step; seeds count from the first stream's."""
    works = [
        ChunkWork(tokens, is_last, seed + place, state)
        for place, ((tokens, is_last), state) in enumerate(zip(chunks, states, strict=True))
    ]
    return [outcome.samples for outcome in runner.run(works, beside=beside)]
