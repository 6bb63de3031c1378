"""Both services at their seams, answering at once, so that what is measured is the gateway alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.speech.speaker import Speaker
from gateway.voices.registry import VoiceRegistry
from token2wav_service.contract import DEFAULT_PRIORITY, LOOKAHEAD_TOKENS, SAMPLES_PER_TOKEN

_SPEECH_TOKENS = 50
"""Tokens of an answer, two seconds: a first chunk of real size, and more after it."""
_LOUDNESS = 0.1


class InstantLLM:
    """Speaks any text as the same tokens, all in one message."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM`."""
        yield SpeechTokenDelta(tuple(range(_SPEECH_TOKENS)), "stop")

    async def is_ready(self) -> bool:
        """See `SpeechLM`."""
        return True


class InstantStream:
    """Answers each chunk with noise, which codecs can't shorten to nothing."""

    stream_id = "instant"
    hop_multiple = 1

    def __init__(self) -> None:
        """Begin before the first chunk."""
        self._random = np.random.default_rng(0)

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        """See `Token2WavStream`."""
        tokens = len(chunk.token_ids) - (0 if chunk.is_last else LOOKAHEAD_TOKENS)
        samples = _LOUDNESS * self._random.standard_normal(tokens * SAMPLES_PER_TOKEN, np.float32)
        answer: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
        answer.set_result(AudioChunk(chunk.index, samples, chunk.is_last))
        return answer


class InstantToken2Wav:
    """Knows every voice and has room for every stream."""

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav`."""
        return RegisteredVoice("voice", ())

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY
    ) -> AsyncIterator[InstantStream]:
        """See `Token2Wav`."""
        yield InstantStream()

    async def is_ready(self) -> bool:
        """See `Token2Wav`."""
        return True


def instant_pipeline(voices: VoiceRegistry) -> Speaker:
    """Make a pipeline that waits for nobody."""
    return Speaker(InstantLLM(), InstantToken2Wav(), voices)
