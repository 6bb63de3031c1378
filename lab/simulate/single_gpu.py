"""The whole system on one GPU in virtual time: the real gateway pipeline and engine, a modelled LLM, one door.

Runs the plans of `benchmarks.end_to_end`: the same texts, voices and arrivals, in the same order after the same
warm-up, because the gateway goes on from what it has measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from itertools import count
from random import Random

from benchmarks.lib.sweep import FinishedRun, RunPlan, jobs_of, warm_up_bursts, warm_up_jobs
from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, PreparedRequest
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.types import LoadResult
from gateway.chunking.policies import ChunkSettings
from gateway.core import InlineVoice, Utterance
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.voices.registry import VoiceRegistry
from lab.simulate.compute import SerialProcess, SharedGPU
from lab.simulate.costs import BESIDE, CostModel
from lab.simulate.llm import ModelledLLM
from lab.simulate.servers import LLMLink, Token2WavLink, Token2WavServer
from lab.simulate.token2wav import ModelledToken2Wav
from tests.virtual_time import ManualClock, run_virtually

SPEECH_TOKENS = 200
"""Speech tokens of every request: random weights speak until `--llm-max-speech-tokens`, 8 s."""
WARM_UP_BURST = 128
VOICES = tuple(["default", "second", *(f"voice-{number:03d}" for number in range(62))])


class PipelineDoor:
    """The pipeline as a caller's door; the processes around it cost what the model says."""

    def __init__(self, pipeline: Speaker, gateway: SerialProcess, costs: CostModel) -> None:
        """Keep the parts."""
        self._pipeline = pipeline
        self._gateway = gateway
        self._cost = costs.gateway
        self._numbers = count()

    async def speak(self, job: PreparedRequest, request_id: str) -> AsyncGenerator[float, None]:
        """Speak one text; yields seconds of audio."""
        await asyncio.sleep(self._cost.latency_s)
        await self._gateway.use(self._cost.request_s)
        request = SpeechRequest(
            job.input.text, voice_of(job.voice or VOICES[0]), seed=next(self._numbers), request_id=request_id
        )
        async with aclosing(self._pipeline.synthesize(request)) as audio:
            async for chunk in audio:
                yield chunk.duration_s


def simulate_sweep(costs: CostModel, plans: Sequence[RunPlan], seed: int = 0) -> list[FinishedRun]:
    """Run a sweep on one GPU that both services share, warmed up as `benchmarks.end_to_end` does it."""
    return simulate_plans(costs, plans, warm_up_bursts(WARM_UP_BURST), seed)


def simulate_plans(
    costs: CostModel, plans: Sequence[RunPlan], bursts: Sequence[int], seed: int = 0
) -> list[FinishedRun]:
    """Run plans one after another, after a warm-up of such bursts in which all voices are made.

    Args:
        costs: what everything takes.
        plans: the runs, in order.
        bursts: requests at once, burst by burst.
        seed: of the draws of the steps' times.
    """
    return run_virtually(lambda clock: _sweep(costs, plans, bursts, seed, clock))


async def _sweep(
    costs: CostModel, plans: Sequence[RunPlan], bursts: Sequence[int], seed: int, clock: ManualClock
) -> list[FinishedRun]:
    gpu, gateway = SharedGPU(costs.slowdowns, BESIDE), SerialProcess()
    llm = ModelledLLM(costs, gpu, _all_alike, Random(f"llm {seed}"))
    draw = Random(f"token2wav {seed}")
    server = Token2WavServer("127.0.0.1:8001", lambda: ModelledToken2Wav(costs, gpu, clock, draw=draw))
    token2wav = Token2WavLink(server, gateway)
    settings = PipelineSettings(ChunkSettings(dynamic_chunk_strategy="deadline").policy())
    voices = VoiceRegistry(token2wav)
    pipeline = Speaker(LLMLink(llm, gateway), token2wav, voices, settings, clock)
    door = PipelineDoor(pipeline, gateway, costs)
    llm.start()
    server.up()
    for name in VOICES:
        await voices.resolve(voice_of(name))
    for jobs in warm_up_jobs(bursts, VOICES):
        await _run(door, jobs, LoadPlan(len(jobs), len(jobs)), clock)
    finished = []
    for plan in plans:
        result = await _run(door, jobs_of(plan), plan.load, clock)
        finished.append(FinishedRun(plan.name, asdict(plan.load), plan.is_unseen, result))
    server.kill()
    await llm.stop()
    return finished


async def _run(door: PipelineDoor, jobs: Sequence[PreparedRequest], load: LoadPlan, clock: ManualClock) -> LoadResult:
    generator = LoadGenerator(door.speak, lambda job: f"{job.input.utt}|{job.voice}", clock, PIECES_OF_A_CHUNK_S)
    return await generator.run(jobs, load, lambda record: None)


def voice_of(name: str) -> InlineVoice:
    """Return the modelled voice of a name."""
    return InlineVoice(name.encode(), "a transcript of some five seconds of speech in a calm voice")


def _all_alike(utterance: Utterance) -> int:
    return SPEECH_TOKENS
