"""How many listeners one token2wav serves in real time, alone on its GPU: `benchmarks.engine_gpu`'s own trial, in
virtual time over the real engine.

Each listener asks for the next second when it has one second left to play; they come one after another.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from lab.simulate.compute import OwnGPU
from lab.simulate.costs import CostModel
from lab.simulate.engine import ModelledExtractor, ModelledRunner, VirtualEngineLoop
from tests.virtual_time import ManualClock, run_virtually
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import LOOKAHEAD_TOKENS, SAMPLE_RATE_HZ, TOKEN_RATE_HZ
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.errors import Token2WavError
from token2wav_service.types import AudioChunk, StreamOptions, StreamSummary, TokenChunk, VoicePrompt

LISTENER_BUFFER_S = 1.0
RAMP_STREAMS_PER_S = 150.0
_WINDOW = (0,) * (TOKEN_RATE_HZ + LOOKAHEAD_TOKENS)
_VOICE_BYTES = 8 * 1024**3


@dataclass
class Trial:
    """What so many listeners heard."""

    listeners: int
    underruns: int = 0
    worst_s: float = 0.0
    chunks: int = 0


def most_listeners(costs: CostModel, numbers: list[int], held_s: float) -> list[Trial]:
    """Try ascending numbers of listeners, each for so long, until one number hears a gap."""
    tried: list[Trial] = []
    for number in numbers:
        tried.append(listen(costs, number, held_s))
        if tried[-1].underruns:
            break
    return tried


def listen(costs: CostModel, listeners: int, held_s: float) -> Trial:
    """Serve so many listeners for so long."""
    return run_virtually(lambda clock: _listen(costs, listeners, held_s, clock))


async def _listen(costs: CostModel, listeners: int, held_s: float, clock: ManualClock) -> Trial:
    runner = ModelledRunner(listeners)
    runner.beside = None  # the measurement runs one step after another
    voices = VoiceStore(ModelledExtractor(), runner, _VOICE_BYTES, VoiceModel(lambda: "modelled"))
    config = Token2WavConfig(Path(), max_batch_size=64, max_streams=listeners)
    # NOTE: the measurement is the engine's alone, in one process: nothing of a server stands around its steps.
    cost = replace(costs.token2wav, answer_s=0.0, around_s=0.0, stream_s=0.0)
    engine = Token2WavEngine(config, voices, runner, clock)
    loop = VirtualEngineLoop(engine, runner, cost, OwnGPU(), clock, Random(0))
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000).astype(np.float32)
    voice_id = voices.register(VoicePrompt(sound)).voice_id
    trial = Trial(listeners)
    crowd = [_Listener(loop, voice_id, number, trial, clock) for number in range(listeners)]
    loop.start()
    for number, listener in enumerate(crowd):
        asyncio.get_running_loop().call_at(number / RAMP_STREAMS_PER_S, listener.ask)
    await asyncio.sleep(listeners / RAMP_STREAMS_PER_S + held_s)
    loop.stop()
    return trial


class _Listener:
    """Plays one stream."""

    def __init__(self, loop: VirtualEngineLoop, voice_id: str, number: int, trial: Trial, clock: ManualClock) -> None:
        self._loop, self._trial, self._clock = loop, trial, clock
        self._stream_id = loop.open_stream(voice_id, StreamOptions(seed=number), self._end)
        self._index = 0
        self._plays_until_s = 0.0

    def ask(self) -> None:
        """Send the window of the next second."""
        self._loop.push(TokenChunk(self._stream_id, self._index, _WINDOW, is_last=False), self._hear)
        self._index += 1

    def _hear(self, outcome: AudioChunk | Token2WavError) -> None:
        if isinstance(outcome, Token2WavError):
            return  # the trial is over
        now_s, trial = self._clock.now(), self._trial
        late_s = now_s - self._plays_until_s if outcome.index else 0.0
        trial.underruns += late_s > 0
        trial.worst_s = max(trial.worst_s, late_s)
        trial.chunks += 1
        self._plays_until_s = max(now_s, self._plays_until_s) + len(outcome.samples) / SAMPLE_RATE_HZ
        asyncio.get_running_loop().call_at(max(self._plays_until_s - LISTENER_BUFFER_S, now_s), self.ask)

    def _end(self, summary: StreamSummary) -> None:
        """Nothing to do: the trial's end ends every stream."""
