"""Pipecat's two ElevenLabs services in a pipeline; runs in its own environment and imports nothing of ours.

python pipecat_elevenlabs.py URL DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
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
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.tts_service import TextAggregationMode

ONE, TWO = "This is the first sentence of it.", "And here comes the second one, longer."
BREAKING_TEXT, LONG_TEXT = "Break here, please, now.", "Leave early, please, now."
RATE_HZ = 24_000
NS_PER_S = 1e9


class Sink(FrameProcessor):
    """Keeps what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = b""
        self.words: list[tuple[str, float]] = []
        self.has_audio, self.has_stopped = asyncio.Event(), asyncio.Event()

    def forget(self) -> None:
        """Begin anew."""
        self.audio, self.words = b"", []
        self.has_audio.clear()
        self.has_stopped.clear()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += frame.audio
            self.has_audio.set()
        elif isinstance(frame, TTSTextFrame):
            self.words.append((frame.text, (frame.pts or 0) / NS_PER_S))
        elif isinstance(frame, TTSStoppedFrame):
            self.has_stopped.set()
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


class Bot:
    """A pipeline that speaks."""

    def __init__(self, task: PipelineTask, source: Source, sink: Sink) -> None:
        self.task, self.source, self.sink = task, source, sink

    async def begin_turn(self, text: str) -> None:
        """Say words as an LLM writes them."""
        self.sink.forget()
        words = [LLMTextFrame(f"{word} ") for word in text.split()]
        await self.task.queue_frames([LLMFullResponseStartFrame(), *words])

    async def end_turn(self) -> None:
        await self.task.queue_frames([LLMFullResponseEndFrame()])

    async def say(self, text: str) -> bytes:
        """Say a whole turn and return its audio."""
        await self.begin_turn(text)
        await self.end_turn()
        await asyncio.wait_for(self.sink.has_stopped.wait(), 20)
        return self.sink.audio

    async def interrupt(self) -> None:
        await asyncio.wait_for(self.sink.has_audio.wait(), 10)
        await self.task.queue_frames([InterruptionFrame()])
        await asyncio.sleep(0.5)


@asynccontextmanager
async def bot_of(service: FrameProcessor) -> AsyncIterator[Bot]:
    source, sink = Source(), Sink()
    params = PipelineParams(audio_out_sample_rate=RATE_HZ)
    task = PipelineTask(Pipeline([source, service, sink]), params=params, cancel_on_idle_timeout=False)
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    yield Bot(task, source, sink)
    await task.queue_frames([EndFrame()])
    await running


async def main(url: str, directory: Path) -> None:
    facts: dict[str, Any] = {}

    def service(voice: str = "anna", **options: Any) -> ElevenLabsTTSService:
        settings = ElevenLabsTTSService.Settings(voice=voice)
        base = url.replace("http", "ws", 1)
        return ElevenLabsTTSService(api_key="any", url=base, settings=settings, **options)

    async with bot_of(service()) as bot:
        (directory / "sentences.pcm").write_bytes(await bot.say(f"{ONE} {TWO}"))
        facts["sentences"] = bot.sink.words
        facts["errors"] = bot.source.errors
    async with bot_of(service(text_aggregation_mode=TextAggregationMode.TOKEN)) as bot:
        (directory / "tokens.pcm").write_bytes(await bot.say(f"{ONE} {TWO}"))
        facts["tokens"] = bot.sink.words
    async with bot_of(service()) as bot:
        for has_ended in (False, True):
            await bot.begin_turn(f"{LONG_TEXT} Then")
            if has_ended:
                await bot.end_turn()
            await bot.interrupt()
            (directory / f"after_interruption_{int(has_ended)}.pcm").write_bytes(await bot.say(ONE))
    async with bot_of(service()) as bot:
        await bot.begin_turn(BREAKING_TEXT)
        await bot.end_turn()
        await asyncio.wait_for(bot.sink.has_stopped.wait(), 20)
        facts["broken_bytes"] = len(bot.sink.audio)
        await asyncio.sleep(1)
        (directory / "after_failure.pcm").write_bytes(await bot.say(ONE))
    async with bot_of(service(voice="nobody")) as bot:
        await asyncio.sleep(1)
        facts["unknown_voice"] = bot.source.errors
    async with aiohttp.ClientSession() as session:
        settings = ElevenLabsHttpTTSService.Settings(voice="anna")
        http = ElevenLabsHttpTTSService(api_key="any", base_url=url, aiohttp_session=session, settings=settings)
        async with bot_of(http) as bot:
            await bot.task.queue_frames([TTSSpeakFrame(ONE)])
            await asyncio.wait_for(bot.sink.has_stopped.wait(), 20)
            (directory / "http.pcm").write_bytes(bot.sink.audio)
            facts["http"] = bot.sink.words
            facts["http_errors"] = bot.source.errors
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
