"""Callers of the gateway's HTTP door, and what each of them hears."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import numpy as np
import numpy.typing as npt

TIMEOUT_S = 120.0
_PCM_PEAK = 32767.0
_HTTP_OK = 200
EXACT_DB = 999.0
"""Said where two signals are equal to the bit."""


@dataclass(frozen=True)
class Heard:
    """One request's answer."""

    seed: int
    samples: npt.NDArray[np.float32]
    """[N] in +-1 at 24 kHz; what came until the end or the failure."""
    seconds: float
    longest_pause_s: float
    """Between two pieces of audio."""
    error: str | None = None
    """What went wrong; None if it is whole."""


class Callers:
    """Callers of one gateway, each with texts of its own."""

    def __init__(self, url: str, texts: list[str], voice: str = "default") -> None:
        """Call nobody yet; caller number n speaks text n (modulo their number) with seed n."""
        self._url = url
        self._texts = texts
        self._voice = voice
        self.first_audio = asyncio.Event()
        """Set when any caller has heard something."""

    async def all_once(self, count: int) -> list[Heard]:
        """Let so many callers speak at the same time, once each."""
        self.first_audio = asyncio.Event()
        async with self._client(count) as client:
            return list(await asyncio.gather(*(self._speak(client, seed) for seed in range(count))))

    async def again_and_again(self, count: int, until: Callable[[], bool]) -> list[Heard]:
        """Let so many callers speak, each again as soon as it has heard all, until told to stop."""

        async def caller(client: httpx.AsyncClient, seed: int) -> list[Heard]:
            heard = []
            while not until():
                heard.append(await self._speak(client, seed))
            return heard

        async with self._client(count) as client:
            lists = await asyncio.gather(*(caller(client, seed) for seed in range(count)))
        return [each for heard in lists for each in heard]

    def _client(self, count: int) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=count)
        return httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False)

    async def _speak(self, client: httpx.AsyncClient, seed: int) -> Heard:
        text = self._texts[seed % len(self._texts)]
        body = {"model": "cosydit", "input": text, "voice": self._voice, "response_format": "pcm", "seed": seed}
        began_s = time.monotonic()
        pieces: list[bytes] = []
        pauses, last_s, error = [0.0], began_s, None
        try:
            async with client.stream("POST", f"{self._url}/v1/audio/speech", json=body) as answer:
                if answer.status_code != _HTTP_OK:
                    error = f"{answer.status_code} {(await answer.aread())[:300]!r}"
                    return _heard(seed, pieces, began_s, pauses, error)
                async for piece in answer.aiter_bytes():
                    now_s = time.monotonic()
                    pauses += [now_s - last_s] if pieces else []
                    last_s = now_s
                    pieces.append(piece)
                    self.first_audio.set()
        except httpx.HTTPError as failure:
            error = repr(failure)
        return _heard(seed, pieces, began_s, pauses, error)


def _heard(seed: int, pieces: list[bytes], began_s: float, pauses: list[float], error: str | None) -> Heard:
    data = b"".join(pieces)
    samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / _PCM_PEAK
    return Heard(seed, samples, time.monotonic() - began_s, max(pauses), error)


def snr_db(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Return the signal-to-noise ratio in dB of one waveform against another; minus EXACT_DB if lengths differ."""
    if got.shape != expected.shape or not len(got):
        return -EXACT_DB
    noise = float(np.sum((got.astype(np.float64) - expected) ** 2))
    signal = float(np.sum(expected.astype(np.float64) ** 2))
    return EXACT_DB if noise == 0.0 else 10 * float(np.log10(max(signal, 1e-30) / noise))
