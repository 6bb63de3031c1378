"""The two token2wav stages of a batch: the engine in this process, and a running `token2wav_dit` over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from cosydit.batch.types import TokenisedUtterance
from cosydit.batch.voices import read_prompt
from gateway.chunking.chunker import TokenChunk
from gateway.core import FloatArray, RegisteredVoice
from gateway.errors import VoiceEvictedError
from gateway.token2wav.client import Token2WavClient
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.errors import InvalidPromptError
from token2wav_service.offline import OfflineUtterance, cut_chunks, synthesize_all
from token2wav_service.types import StreamOptions, VoicePrompt


class EngineStage:
    """Drives an engine of this process until all utterances handed over have finished."""

    def __init__(self, engine: Token2WavEngine, chunk_tokens: int) -> None:
        """Keep the engine; nothing else may use it."""
        self._engine = engine
        self._chunk_tokens = chunk_tokens
        # A thread of its own, so that the next batch does not wait for the files of the one before.
        self._thread = ThreadPoolExecutor(1, "token2wav")

    async def make_voice(self, samples: FloatArray) -> RegisteredVoice:
        """See `Token2WavStage.make_voice`."""
        features = await asyncio.to_thread(self._engine.voices.register, VoicePrompt(samples))
        return RegisteredVoice(features.voice_id, tuple(features.prompt_tokens.tolist()))

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """See `Token2WavStage.speak`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._speak, utterances)

    async def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        spoken = synthesize_all(self._engine, map(_offline, utterances), self._chunk_tokens)
        outcomes = {each.name: each.outcome for each in spoken}
        return [outcomes[each.input.utt] for each in utterances]


class TritonStage:
    """Sends whole utterances to a served model; its scheduler makes the batches."""

    def __init__(self, url: str, chunk_tokens: int) -> None:
        """Connect lazily to `url` (host:port of Triton's gRPC service)."""
        self._client = Token2WavClient(url)
        self._chunk_tokens = chunk_tokens

    async def make_voice(self, samples: FloatArray) -> RegisteredVoice:
        """See `Token2WavStage.make_voice`."""
        return await self._client.register_voice(samples)

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """See `Token2WavStage.speak`."""
        return await asyncio.gather(*map(self._speak_one, utterances))

    async def close(self) -> None:
        """Drop the connection."""
        await self._client.close()

    async def _speak_one(self, utterance: TokenisedUtterance) -> FloatArray | Exception:
        try:
            return await self._stream(utterance)
        except VoiceEvictedError:
            pass
        except Exception as error:  # the row's failure, whatever it was
            return error
        try:
            # NOTE: making it again right before the stream opens leaves no time to lose it.
            await self.make_voice(await asyncio.to_thread(read_prompt, utterance.voice.prompt))
            return await self._stream(utterance)
        except Exception as error:
            return error

    async def _stream(self, utterance: TokenisedUtterance) -> FloatArray:
        cuts = cut_chunks(utterance.token_ids, self._chunk_tokens)
        async with self._client.open_stream(utterance.voice.voice_id, utterance.seed) as stream:
            pushes = []
            for index, token_ids in enumerate(cuts):
                chunk = TokenChunk(index, index * self._chunk_tokens, token_ids, index == len(cuts) - 1)
                pushes.append(stream.push(chunk))
            spoken = [await push for push in pushes]
        return np.concatenate([chunk.samples for chunk in spoken])


def _offline(utterance: TokenisedUtterance) -> OfflineUtterance:
    voice, options = utterance.voice, StreamOptions(utterance.seed)
    load = partial(_load_prompt, voice.prompt)
    return OfflineUtterance(utterance.input.utt, utterance.token_ids, load, options, voice.voice_id)


def _load_prompt(prompt: Path | bytes) -> VoicePrompt:
    try:
        return VoicePrompt(read_prompt(prompt))
    except OSError as error:
        raise InvalidPromptError(f"the prompt was read before and can't be read again: {error}") from error
