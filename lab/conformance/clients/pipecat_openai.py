"""Pipecat's OpenAI service in a pipeline; runs in its own environment and imports nothing of ours.

python pipecat_openai.py URL DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, InterruptionFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.tts import OpenAITTSService

TEXT = "Hello there."
LONG_TEXT = "Leave early."
RATE_HZ = 24_000


class Sink(FrameProcessor):
    """Keeps what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = b""
        self.has_audio = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += frame.audio
            self.has_audio.set()
        await self.push_frame(frame, direction)


class Source(FrameProcessor):
    """Keeps the errors that come back."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)


async def main(url: str, directory: Path) -> None:
    facts: dict[str, Any] = {}
    source, sink = await _run(url, [TTSSpeakFrame(TEXT), EndFrame()])
    (directory / "spoken.pcm").write_bytes(sink.audio)
    facts["errors"] = source.errors
    source, _ = await _run(url, [TTSSpeakFrame("!?"), EndFrame()])
    facts["refusals"] = source.errors
    await _interrupt(url)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _task(url: str, source: Source, sink: Sink) -> PipelineTask:
    settings = OpenAITTSService.Settings(voice="alloy", model="cosydit")
    service = OpenAITTSService(api_key="any", base_url=f"{url}/v1", settings=settings)
    params = PipelineParams(audio_out_sample_rate=RATE_HZ)
    return PipelineTask(Pipeline([source, service, sink]), params=params)


async def _run(url: str, frames: list[Frame]) -> tuple[Source, Sink]:
    source, sink = Source(), Sink()
    task = _task(url, source, sink)
    await task.queue_frames(frames)
    await PipelineRunner(handle_sigint=False).run(task)
    return source, sink


async def _interrupt(url: str) -> None:
    source, sink = Source(), Sink()
    task = _task(url, source, sink)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    await task.queue_frames([TTSSpeakFrame(LONG_TEXT)])
    await sink.has_audio.wait()
    await task.queue_frames([InterruptionFrame(), EndFrame()])
    await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
