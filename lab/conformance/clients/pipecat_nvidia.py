"""Pipecat's NVIDIA service in a pipeline; runs in its own environment and imports nothing of ours.

python pipecat_nvidia.py ADDRESS DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.nvidia.tts import NvidiaTTSService, NvidiaTTSSynthesisMode

TEXT = "Hello there."
LONG_TEXT = "Leave early."
PER_SENTENCE, STITCHED = NvidiaTTSSynthesisMode.PER_SENTENCE, NvidiaTTSSynthesisMode.STITCHED
RATES_HZ = {PER_SENTENCE: 24_000, STITCHED: 16_000}
ANSWER = (
    LLMFullResponseStartFrame(),
    LLMTextFrame("Hello there. "),
    LLMTextFrame("Hello again. "),
    LLMFullResponseEndFrame(),
)


class Ear(FrameProcessor):
    """Keeps the audio that arrives and the errors that go back."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = b""
        self.errors: list[str] = []
        self.heard = asyncio.Condition()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += frame.audio
        if isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        async with self.heard:
            self.heard.notify_all()
        await self.push_frame(frame, direction)

    async def until_heard(self, audio_bytes: int) -> None:
        async with self.heard:
            await asyncio.wait_for(self.heard.wait_for(lambda: len(self.audio) >= audio_bytes), 30)


async def main(address: str, directory: Path) -> None:
    facts: dict[str, Any] = {"errors": []}
    for mode, rate_hz in RATES_HZ.items():
        ear = await _speak(address, mode, rate_hz)
        (directory / f"{mode.value}.raw").write_bytes(ear.audio)
        facts["errors"] += ear.errors
    await _interrupt(address)
    facts["refusals"] = await _refused(address)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _task(address: str, ear: Ear, mode: NvidiaTTSSynthesisMode, voice: str, rate_hz: int) -> PipelineTask:
    settings = NvidiaTTSService.Settings(voice=voice, synthesis_mode=mode)
    service = NvidiaTTSService(server=address, use_ssl=False, api_key="any", settings=settings)
    source = Ear()
    source.errors = ear.errors
    return PipelineTask(Pipeline([source, service, ear]), params=PipelineParams(audio_out_sample_rate=rate_hz))


async def _speak(address: str, mode: NvidiaTTSSynthesisMode, rate_hz: int) -> Ear:
    """Have an LLM's answer of two sentences spoken, each two seconds of 16-bit audio."""
    ear = Ear()
    task = _task(address, ear, mode, "default", rate_hz)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    await task.queue_frames(list(ANSWER))
    await ear.until_heard(2 * 2 * 2 * rate_hz)
    await task.queue_frames([EndFrame()])
    await running
    return ear


async def _interrupt(address: str) -> None:
    ear = Ear()
    task = _task(address, ear, PER_SENTENCE, "default", 24_000)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    await task.queue_frames([TTSSpeakFrame(LONG_TEXT)])
    await ear.until_heard(1)
    await task.queue_frames([InterruptionFrame(), EndFrame()])
    await running


async def _refused(address: str) -> list[str]:
    ear = Ear()
    task = _task(address, ear, PER_SENTENCE, "nobody", 24_000)
    await task.queue_frames([TTSSpeakFrame(TEXT), EndFrame()])
    await PipelineRunner(handle_sigint=False).run(task)
    return ear.errors


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
