"""The two token2wav stages of a batch: the engine in this process, and a running `token2wav_dit` over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from benchmarks.lib.batch.types import BatchVoice, TokenisedUtterance
from gateway.chunking import TokenWindow
from gateway.core import FloatArray
from gateway.errors import VoiceEvictedError
from gateway.token2wav_client import Token2WavClient
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.types import StreamOptions, VoicePrompt
from token2wav_service.offline import OfflineUtterance, cut_windows, synthesize_all


class EngineStage:
    """Drives an engine of this process until all utterances handed over have finished."""

    def __init__(self, engine: Token2WavEngine, window_tokens: int) -> None:
        """Keep the engine; nothing else may use it."""
        self._engine = engine
        self._window_tokens = window_tokens

    async def make_voice(self, samples: FloatArray) -> BatchVoice:
        """See `Token2WavStage.make_voice`."""
        features = await asyncio.to_thread(self._engine.voices.register, VoicePrompt(samples))
        return BatchVoice(samples, tuple(features.prompt_tokens.tolist()))

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """See `Token2WavStage.speak`."""
        return await asyncio.to_thread(self._speak, utterances)

    async def close(self) -> None:
        """Hold nothing."""

    def _speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        offline = [
            OfflineUtterance(each.input.utt, each.token_ids, VoicePrompt(each.voice.samples), StreamOptions(each.seed))
            for each in utterances
        ]
        spoken = {each.name: each.outcome for each in synthesize_all(self._engine, offline, self._window_tokens)}
        return [spoken[each.input.utt] for each in utterances]


class TritonStage:
    """Sends whole utterances to a served model; its scheduler makes the batches."""

    def __init__(self, url: str, window_tokens: int) -> None:
        """Connect lazily to `url` (host:port of Triton's gRPC service)."""
        self._client = Token2WavClient(url)
        self._window_tokens = window_tokens

    async def make_voice(self, samples: FloatArray) -> BatchVoice:
        """See `Token2WavStage.make_voice`."""
        return BatchVoice(samples, (await self._client.register_voice(samples)).prompt_speech_tokens)

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
            # NOTE: registering it again right before the stream opens leaves no time to lose it.
            pass
        except Exception as error:  # the row's failure, whatever it was
            return error
        try:
            return await self._stream(utterance)
        except Exception as error:
            return error

    async def _stream(self, utterance: TokenisedUtterance) -> FloatArray:
        voice = await self._client.register_voice(utterance.voice.samples)
        cuts = cut_windows(utterance.token_ids, self._window_tokens)
        async with self._client.open_stream(voice.voice_id, utterance.seed) as stream:
            pushes = []
            for index, token_ids in enumerate(cuts):
                window = TokenWindow(index, index * self._window_tokens, token_ids, index == len(cuts) - 1)
                pushes.append(stream.push(window))
            chunks = [await push for push in pushes]
        return np.concatenate([chunk.samples for chunk in chunks])
