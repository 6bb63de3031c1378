"""Measures token2wav alone with random speech tokens: streams in one batch against the same streams one by one.

Two ways to it: the engine in this process, or the served model `token2wav_dit` over gRPC. Both play the same streams.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from tqdm import tqdm

from cosydit.bench.metrics import Distribution, distribution
from cosydit.bench.report import aligned_table
from cosydit.bench.types import BenchmarkError
from gateway.chunking.chunker import Chunker
from gateway.chunking.chunker import TokenChunk as CutChunk
from gateway.chunking.policies import FixedChunks
from gateway.core import FloatArray
from gateway.token2wav.client import Token2WavClient
from servicekit.clock import Clock
from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, SAMPLE_RATE_HZ, SPEECH_VOCAB_SIZE, TOKEN_RATE_HZ
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.types import AudioChunk, StreamOptions, TokenChunk, VoicePrompt

_MS = 1000
_PROMPT_PEAK = 0.1
Windows = Sequence[CutChunk]


@dataclass(frozen=True)
class Play:
    """Some streams played from their first window to their last."""

    wall_s: float
    window_s: list[float]
    """Seconds. Engine: of each step. Triton: from a window's push to its audio."""
    audio_s: float
    """Seconds of audio over all streams."""


class Player(Protocol):
    """Plays streams side by side, one window of each at a time."""

    def play(self, streams: Sequence[Windows]) -> Play:
        """Play all streams to their ends.

        Raises:
            BenchmarkError: a window failed, or a step was not the batch it should have been.
        """
        ...


@dataclass(frozen=True)
class BenchCase:
    """One row of the report."""

    streams: int
    hop_tokens: int
    """Tokens (25 Hz) that each window speaks."""


@dataclass(frozen=True)
class CaseFigures:
    """What a case came to; medians over the repeats are properties."""

    case: BenchCase
    audio_s: float
    """Seconds of audio of all streams together."""
    batched_runs_s: list[float]
    """Seconds of each repeat with all streams side by side."""
    one_by_one_runs_s: list[float]
    """Seconds of each repeat with the same streams alone, one after the other."""
    window_s: Distribution | None
    """Times of the batched runs; see `Play.window_s`."""

    @property
    def batched_s(self) -> float:
        """Median of all streams side by side."""
        return median(self.batched_runs_s)

    @property
    def one_by_one_s(self) -> float:
        """Median of the streams one by one."""
        return median(self.one_by_one_runs_s)

    @property
    def rtf(self) -> float:
        """Seconds of work per second of audio, side by side."""
        return self.batched_s / self.audio_s

    @property
    def rtf_one_by_one(self) -> float:
        """Seconds of work per second of audio, one by one."""
        return self.one_by_one_s / self.audio_s

    @property
    def speed_up(self) -> float:
        """How many times faster the batch is."""
        return self.one_by_one_s / self.batched_s


class EnginePlayer:
    """Plays on an engine in this process, by calling `step` itself."""

    def __init__(self, engine: Token2WavEngine, prompt: FloatArray, clock: Clock) -> None:
        """Register the voice of all streams."""
        self._engine = engine
        self._clock = clock
        self._voice_id = engine.voices.register(VoicePrompt(prompt)).voice_id

    def play(self, streams: Sequence[Windows]) -> Play:
        """Every step takes the next window of every stream that has one; see `Player.play`."""
        ids = [self._engine.open_stream(self._voice_id, StreamOptions(seed)) for seed in range(len(streams))]
        step_s: list[float] = []
        samples = 0
        try:
            for turn in range(max(map(len, streams))):
                due = [(name, windows[turn]) for name, windows in zip(ids, streams, strict=True) if turn < len(windows)]
                for name, window in due:
                    self._engine.add_chunk(TokenChunk(name, window.index, window.token_ids, window.is_last))
                began_s = self._clock.now()
                results = self._engine.step()
                step_s.append(self._clock.now() - began_s)
                if len(results) != len(due):
                    raise BenchmarkError(f"a step ran {len(results)} of {len(due)} streams; raise max_batch_size")
                samples += sum(_sample_count(result.outcome) for result in results)
        finally:
            for name in ids:
                self._engine.abort(name)
        return Play(sum(step_s), step_s, samples / SAMPLE_RATE_HZ)


class TritonPlayer:
    """Plays on a served `token2wav_dit`; the server's scheduler makes the batches."""

    def __init__(self, url: str, prompt: FloatArray, clock: Clock) -> None:
        """Keep `url` (host:port of Triton's gRPC service); the voice is registered before each play."""
        self._url = url
        self._prompt = prompt
        self._clock = clock

    def play(self, streams: Sequence[Windows]) -> Play:
        """Each stream sends its next window when the last one's audio has come; see `Player.play`."""
        return asyncio.run(self._play(streams))

    async def _play(self, streams: Sequence[Windows]) -> Play:
        client = Token2WavClient(self._url)
        try:
            voice_id = (await client.register_voice(self._prompt)).voice_id
            began_s = self._clock.now()
            each = await asyncio.gather(*(self._stream(client, voice_id, *pair) for pair in enumerate(streams)))
            wall_s = self._clock.now() - began_s
        finally:
            await client.close()
        return Play(wall_s, [took for times, _ in each for took in times], sum(audio_s for _, audio_s in each))

    async def _stream(
        self, client: Token2WavClient, voice_id: str, seed: int, windows: Windows
    ) -> tuple[list[float], float]:
        times: list[float] = []
        audio_s = 0.0
        async with client.open_stream(voice_id, seed) as stream:
            for window in windows:
                began_s = self._clock.now()
                audio = await stream.push(window)
                times.append(self._clock.now() - began_s)
                audio_s += audio.duration_s
        return times, audio_s


def measure(
    player: Player, cases: Sequence[BenchCase], audio_s: float, repeats: int, warm_up: int, seed: int
) -> list[CaseFigures]:
    """Play every case batched and one by one, in turns, so that a slow moment of the machine meets both.

    Args:
        player: where to play.
        cases: what to play.
        audio_s: seconds of speech tokens in each stream.
        repeats: times that each is measured.
        warm_up: times that each is played before and not measured.
        seed: of the random tokens.
    """
    figures = []
    with tqdm(total=len(cases) * (repeats + warm_up), unit="play") as bar:
        for case in cases:
            streams = random_streams(case, audio_s, seed)
            figures.append(_measure_case(player, case, streams, repeats, warm_up, bar.update))
    return figures


def figures_table(figures: Sequence[CaseFigures], window_name: str) -> str:
    """Return the figures for people; `window_name` says what a window's time is."""
    rows = [["streams", "hop", f"{window_name} p50 ms", "p99 ms", "per stream ms", "RTF", "RTF 1 by 1", "speed-up"]]
    for row in figures:
        if row.window_s is None:
            continue
        typical_ms = row.window_s.percentiles[50] * _MS
        cells = [f"{typical_ms:.1f}", f"{row.window_s.percentiles[99] * _MS:.1f}"]
        cells += [f"{typical_ms / row.case.streams:.1f}", f"{row.rtf:.4f}", f"{row.rtf_one_by_one:.4f}"]
        rows.append([str(row.case.streams), str(row.case.hop_tokens), *cells, f"{row.speed_up:.2f}x"])
    return aligned_table(rows)


def random_streams(case: BenchCase, audio_s: float, seed: int) -> list[Windows]:
    """Return the windows of a case's streams, cut from random tokens."""
    draw = np.random.default_rng(seed)
    tokens = max(1, math.ceil(audio_s * TOKEN_RATE_HZ))
    return [_windows(draw.integers(0, SPEECH_VOCAB_SIZE, tokens).tolist(), case) for _ in range(case.streams)]


def random_prompt(seconds: float, seed: int) -> FloatArray:
    """Return noise that passes for a voice prompt: [N] float32 at 16 kHz."""
    noise = np.random.default_rng(seed).standard_normal(int(seconds * PROMPT_SAMPLE_RATE_HZ))
    prompt: FloatArray = (_PROMPT_PEAK * noise / np.abs(noise).max()).astype(np.float32)
    return prompt


def _measure_case(
    player: Player,
    case: BenchCase,
    streams: Sequence[Windows],
    repeats: int,
    warm_up: int,
    on_play: Callable[[], object],
) -> CaseFigures:
    batched: list[Play] = []
    one_by_one_s: list[float] = []
    for turn in range(warm_up + repeats):
        together = player.play(streams)
        alone_s = sum(player.play([windows]).wall_s for windows in streams)
        on_play()
        if turn >= warm_up:
            batched.append(together)
            one_by_one_s.append(alone_s)
    window_s = distribution(took for play in batched for took in play.window_s)
    return CaseFigures(case, batched[0].audio_s, [play.wall_s for play in batched], one_by_one_s, window_s)


def _windows(tokens: list[int], case: BenchCase) -> Windows:
    chunker = Chunker(FixedChunks(case.hop_tokens, case.hop_tokens))
    return [*chunker.push(tokens), chunker.flush()]


def _sample_count(outcome: object) -> int:
    if isinstance(outcome, AudioChunk):
        return len(outcome.samples)
    raise BenchmarkError(f"a window failed: {outcome}")
