"""Bad prompts and bad chunks against the real token2wav service: typed errors, neighbours unharmed, nothing left."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import torch

from gateway.chunking.chunker import TokenChunk
from gateway.core import RegisteredVoice, Token2WavStream
from gateway.errors import InvalidVoicePromptError, Token2WavInterruptedError, Token2WavRejectedError, VoiceEvictedError
from gateway.token2wav.client import Token2WavClient
from tests.e2e.conftest import RunningStack
from token2wav_service.replay.vectors import WAVE_SNR_DB, snr_db

pytestmark = pytest.mark.servers

RATE = 16_000
TOKENS = tuple(int(token) for token in np.random.default_rng(0).integers(0, 6561, 60))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)


def _wav(samples: np.ndarray) -> bytes:  # type: ignore[type-arg]
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


def _buzz(seconds: float) -> np.ndarray:  # type: ignore[type-arg]
    return 0.2 * np.sign(np.sin(2 * np.pi * 130 * np.arange(int(seconds * RATE)) / RATE))


def _windows(hop: int = 15) -> list[TokenChunk]:
    cuts, start = [], 0
    while start + hop + 3 <= len(TOKENS):
        cuts.append(TokenChunk(len(cuts), start, TOKENS[start : start + hop + 3], False))
        start += hop
    return [*cuts, TokenChunk(len(cuts), start, TOKENS[start:], True)]


async def _speak(client: Token2WavClient, voice: RegisteredVoice) -> np.ndarray:  # type: ignore[type-arg]
    async with client.open_stream(voice.voice_id, seed=1) as stream:
        return np.concatenate([(await stream.push(window)).samples for window in _windows()])


_alone: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
"""What a stream without neighbours sounds like, by the server's address."""


async def _beside_a_neighbour(
    running: RunningStack, bad: Callable[[Token2WavClient, RegisteredVoice], Awaitable[None]]
) -> None:
    """Run `bad` while another stream speaks, and compare that stream with one that spoke alone."""
    address = running.options.token2wav_url
    client = Token2WavClient(address)
    try:
        voice = await client.register_voice(_wav(_buzz(3.0)))
        if address not in _alone:
            _alone[address] = await _speak(client, voice)
        together, _ = await asyncio.gather(_speak(client, voice), bad(client, voice))
        assert snr_db(torch.from_numpy(together), torch.from_numpy(_alone[address])) >= WAVE_SNR_DB
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        pytest.param(_wav(np.zeros(3 * RATE)), "silent", id="silent"),
        pytest.param(_wav(_buzz(0.02)), "20 ms", id="20 ms"),
        pytest.param(_wav(np.tile(_buzz(1.0), 600)), "600", id="10 minutes"),
        pytest.param(PNG, "audio", id="a PNG"),
        pytest.param(_wav(_buzz(3.0))[:3000], "truncated|cut|incomplete|shorter", id="truncated WAV"),
        pytest.param(b"", "empty", id="no bytes"),
    ],
)
async def test_a_bad_prompt_is_refused(idle_after: RunningStack, audio: bytes, message: str) -> None:
    async def bad(client: Token2WavClient, voice: RegisteredVoice) -> None:
        with pytest.raises(InvalidVoicePromptError, match=f"(?i){message}"):
            await client.register_voice(audio)

    await _beside_a_neighbour(idle_after, bad)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        pytest.param(TokenChunk(0, 0, (1, 2, 6561, 4, 5), False), "6561", id="token id out of range"),
        pytest.param(TokenChunk(0, 0, (1, 2, -1, 4, 5), False), "-1", id="negative token id"),
        pytest.param(TokenChunk(3, 0, TOKENS[:18], False), "expected 0", id="wrong chunk index"),
        pytest.param(TokenChunk(0, 0, TOKENS[:3], False), "at least 4", id="only look-ahead"),
        pytest.param(TokenChunk(0, 0, (), True), "0 tokens", id="no token at all"),
    ],
)
async def test_a_bad_chunk_is_refused(idle_after: RunningStack, window: TokenChunk, message: str) -> None:
    async def bad(client: Token2WavClient, voice: RegisteredVoice) -> None:
        with pytest.raises(Token2WavRejectedError, match=message):
            async with client.open_stream(voice.voice_id, seed=1) as stream:
                await stream.push(window)

    await _beside_a_neighbour(idle_after, bad)


async def test_a_chunk_for_a_closed_stream_is_refused(idle_after: RunningStack) -> None:
    async def bad(client: Token2WavClient, voice: RegisteredVoice) -> None:
        async def push_all(stream: Token2WavStream) -> None:
            for window in _windows():
                await stream.push(window)

        with pytest.raises(Token2WavInterruptedError, match="has ended"):
            async with client.open_stream(voice.voice_id, seed=1) as stream:
                await push_all(stream)
                await stream.push(TokenChunk(len(_windows()), 0, TOKENS[:18], False))

    await _beside_a_neighbour(idle_after, bad)


async def test_an_unknown_voice_is_a_typed_error(idle_after: RunningStack) -> None:
    async def bad(client: Token2WavClient, voice: RegisteredVoice) -> None:
        with pytest.raises(VoiceEvictedError, match="register"):
            async with client.open_stream("nobody", seed=1):
                pass

    await _beside_a_neighbour(idle_after, bad)


async def test_one_token_chunks_work_over_the_wire(idle_after: RunningStack) -> None:
    client = Token2WavClient(idle_after.options.token2wav_url)
    voice = await client.register_voice(_wav(_buzz(3.0)))
    async with client.open_stream(voice.voice_id, seed=1) as stream:
        cuts = [TokenChunk(i, i, TOKENS[i : i + 4], False) for i in range(6)]
        audio = [await stream.push(window) for window in [*cuts, TokenChunk(6, 6, (), True)]]
    await client.close()
    assert sum(len(chunk.samples) for chunk in audio) == 960 * 9
