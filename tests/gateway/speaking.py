"""A token2wav that speaks a sound which can be recognised, and what a door sent of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray
from tests.gateway.audio.signals import speech_like
from tests.gateway.fakes import FakeStream, FakeToken2Wav
from token2wav_service.contract import SAMPLES_PER_TOKEN

SPEECH_TOKENS = 50
"""What a speaking fake has sound for: two seconds."""


def spoken_sound() -> FloatArray:
    """Return the samples that speech of `SPEECH_TOKENS` is made of."""
    return speech_like(SPEECH_TOKENS * SAMPLES_PER_TOKEN)


class SpeakingStream(FakeStream):
    """Gives each chunk its part of the sound."""

    _sent_samples = 0

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        future = super().push(chunk)
        if future.exception() is not None:
            return future
        end = self._sent_samples + len(future.result().samples)
        answer: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
        answer.set_result(AudioChunk(chunk.index, spoken_sound()[self._sent_samples : end], chunk.is_last))
        self._sent_samples = end
        return answer


@dataclass
class SpeakingToken2Wav(FakeToken2Wav):
    """A fake whose audio is a sound."""

    @asynccontextmanager
    async def open_stream(self, voice_id: str, seed: int, priority: int = 10) -> AsyncIterator[FakeStream]:
        async with super().open_stream(voice_id, seed, priority) as stream:
            yield SpeakingStream(self, stream.stream_id)


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Parse a body of server-sent events; each is one line of data."""
    *blocks, rest = body.decode().split("\n\n")
    assert rest == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def audio_of(events: list[dict[str, Any]]) -> bytes:
    """Join the audio of the deltas."""
    return b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta")
