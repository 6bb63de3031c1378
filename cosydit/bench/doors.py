"""The ways into the running services: the drop-in Triton model, streaming or whole, and the gateway's HTTP door.

Each sends one request and yields the duration of every piece of audio as it comes. Knows nothing of load or figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import grpc
import numpy as np

from cosydit.bench.types import BenchmarkError, SpeechInput
from gateway.audio.codecs import PCM16_BYTES
from gateway.client import UNLIMITED, drop_in_answers, drop_in_tensors
from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ

_PCM16_SCALE = 32768.0
PIECES_OF_A_CHUNK_S = 0.005
"""Longest pause in seconds within one chunk of the gateway, which HTTP cuts into pieces."""

OnSamples = Callable[[str, FloatArray], None]
"""Takes a request's id and a piece of its audio: [N] float32 in +-1 at 24 kHz."""


@dataclass(frozen=True)
class PreparedRequest:
    """One request, ready to be sent."""

    input: SpeechInput
    reference: FloatArray | None
    """[N] mono float32 in +-1 at 16 kHz; None leaves the voice to the server."""
    voice: str | None = None
    """Name of a voice that the gateway knows; None takes the door's own."""


class TritonDoor:
    """One connection to a Triton server that has `cosyvoice2_dit`."""

    def __init__(self, url: str, timeout_s: float, model: str, is_whole: bool) -> None:
        """Connect lazily to `url`, host:port of Triton's gRPC service, which may be silent for `timeout_s`.

        `is_whole`: the drop-in was assembled with DECOUPLED_MODE=False, and one whole waveform comes.
        """
        self._url = url
        self._timeout_s = timeout_s
        self._model = model
        self._is_whole = is_whole
        self._channel = grpc.aio.insecure_channel(url, options=UNLIMITED)

    async def aclose(self) -> None:
        """Drop the connection."""
        await self._channel.close()

    async def speak(self, job: PreparedRequest, request_id: str) -> AsyncGenerator[float, None]:
        """Send the original's tensors; leaving early cancels the request.

        Raises:
            ClientError: an error response, no answer in time, or the connection broke.
        """
        tensors = drop_in_tensors(job.input.text, job.reference, job.input.prompt_text)
        where = (self._channel, self._url, self._model, tensors, self._timeout_s)
        async with aclosing(drop_in_answers(*where, request_id, self._is_whole)) as answers:
            async for samples in answers:
                yield float(samples.size / SAMPLE_RATE_HZ)


class HttpDoor:
    """The gateway's POST /v1/audio/speech, streaming PCM in a voice that the gateway knows by name."""

    def __init__(self, url: str, timeout_s: float, voice: str, on_samples: OnSamples | None = None) -> None:
        """Connect to nothing yet; `url` is the gateway's, and `voice` is that of requests that name none."""
        self._url = url
        self._timeout_s = timeout_s
        self._voice = voice
        self._on_samples = on_samples
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Drop the connections."""
        if self._session is not None:
            await self._session.close()

    async def speak(self, job: PreparedRequest, request_id: str) -> AsyncGenerator[float, None]:
        """Send one text; the pieces are the network's, see `PIECES_OF_A_CHUNK_S`.

        Raises:
            BenchmarkError: refused, not reachable, broken off, or no answer in time.
        """
        voice = job.voice or self._voice
        body = {"model": "cosydit", "input": job.input.text, "voice": voice, "response_format": "pcm"}
        url, headers = f"{self._url}/v1/audio/speech", {"x-request-id": request_id}
        try:
            async with self._http().post(url, json=body, headers=headers) as response:
                if response.status != HTTPStatus.OK:
                    text = await response.text(errors="replace")
                    raise BenchmarkError(f"the gateway answered {response.status}: {text}")
                async for pcm in _whole_samples(response.content.iter_any()):
                    if self._on_samples is not None and pcm:
                        self._on_samples(request_id, np.frombuffer(pcm, "<i2").astype(np.float32) / _PCM16_SCALE)
                    yield len(pcm) / PCM16_BYTES / SAMPLE_RATE_HZ
        except asyncio.TimeoutError as error:
            raise BenchmarkError(f"{url}: silent for {self._timeout_s} s; is it overloaded?") from error
        except aiohttp.ClientError as error:
            raise BenchmarkError(f"{url}: {error or type(error).__name__}") from error

    def _http(self) -> aiohttp.ClientSession:
        """Return the connection pool, made on first use because it belongs to the running event loop."""
        if self._session is None:
            silence_s = self._timeout_s
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=silence_s, sock_read=silence_s),
                trust_env=False,
            )
        return self._session


async def _whole_samples(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for piece in pieces:
        pcm = rest + piece
        whole = len(pcm) - len(pcm) % PCM16_BYTES
        rest = pcm[whole:]
        yield pcm[:whole]
