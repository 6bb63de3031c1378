"""Callers who come and go in every way: who listen, leave, bring voices, and do harm."""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import soundfile
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from lab.faults.clients import BAD_CLIENTS, TEXTS, Doors
from lab.load.storm_doors import DOORS, Ask, Ports, RefusedError

HOST = "127.0.0.1"
TIMEOUT_S = 300.0
FORMATS = ("pcm", "wav", "mp3", "opus", "flac", "mulaw")
_HTTP_OK, _HTTP_TOO_MANY, _HTTP_UNAVAILABLE = 200, 429, 503
_SHOWN_FAILURES = 5
_BACK_OFF_S = 1.0
_LONGEST = 3
"""Most sentences of a text."""

# The stubs have no types.
_stub: Callable[[Any], Any] = tts_service_pb2_grpc.TextToSpeechServiceStub


@dataclass
class Tally:
    """What became of all requests so far, by what was done."""

    ended: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    """Texts of the first few failures."""


class Churn:
    """Callers of one gateway."""

    def __init__(self, doors: Doors, recording: Path, rng: random.Random) -> None:
        """Call nobody yet.

        Args:
            doors: of a gateway that keeps created voices.
            recording: of a voice; the voices that callers bring are made of it, each a little different.
            rng: draws who does what.
        """
        self.tally = Tally()
        self._doors = doors
        self._recording, self._rate_hz = soundfile.read(recording, dtype="float32")
        self._rng = rng
        self._asks: dict[str, Ask] = {}
        self._kinds: dict[str, tuple[float, Callable[[], Awaitable[None]]]] = {
            "listens": (6, self._listen),
            "listens at another door": (5, self._listen_elsewhere),
            "harms": (3, self._harm),
            "brings a voice": (1, self._bring_a_voice),
            "creates and deletes a voice": (0.5, self._create_and_delete),
        }

    async def run(self, callers: int, seconds: float) -> None:
        """Let so many callers do one thing after the other, and return when the last one has ended."""
        until_s = time.monotonic() + seconds
        async with AsyncExitStack() as stack:
            ports = Ports(self._doors.http, self._doors.grpc)
            self._asks = {name: await stack.enter_async_context(open_door(ports)) for name, open_door in DOORS.items()}
            await asyncio.gather(*(self._call(until_s) for _ in range(callers)))

    async def _call(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            names = list(self._kinds)
            (name,) = self._rng.choices(names, [self._kinds[each][0] for each in names])
            try:
                await self._kinds[name][1]()
            except RefusedError:
                self.tally.refused += 1
                await asyncio.sleep(_BACK_OFF_S)
            except Exception as error:  # NOTE: whatever a client's library raises, the request was not served
                self._fail(f"{name}: {error!r}")
            else:
                self.tally.ended[name] += 1

    def _fail(self, what: str) -> None:
        self.tally.failed += 1
        if len(self.tally.failures) < _SHOWN_FAILURES:
            self.tally.failures.append(what[:300])

    def _text(self) -> str:
        sentences = self._rng.choices(TEXTS, k=self._rng.randint(1, _LONGEST))
        return " ".join([*sentences, f"That was number {self._rng.randrange(10_000)}."])

    async def _listen(self, voice: str = "default") -> None:
        body = {"model": "cosydit", "input": self._text(), "voice": voice}
        body |= {"response_format": self._rng.choice(FORMATS)}
        async with self._client() as client:
            answer = _checked(await client.post("/v1/audio/speech", json=body))
        if not answer.content:
            raise ConnectionError("an answer without audio")

    async def _listen_elsewhere(self) -> None:
        name = self._rng.choice([name for name in self._asks if name != "http"])
        heard = list[float]()
        await self._asks[name]("no-key", self._text(), heard.append)
        if not sum(heard):
            raise ConnectionError(f"no audio over {name}")

    async def _harm(self) -> None:
        await self._rng.choice(list(BAD_CLIENTS.values()))(self._doors, self._rng)

    def _new_recording(self) -> bytes:
        """Return a WAV file that nobody has sent before."""
        noise = np.random.default_rng(self._rng.randrange(2**32)).normal(0.0, 1e-4, len(self._recording))
        file = io.BytesIO()
        soundfile.write(file, self._recording * self._rng.uniform(0.5, 0.9) + noise, self._rate_hz, format="WAV")
        return file.getvalue()

    async def _bring_a_voice(self) -> None:
        prompt = speech_pb2.VoicePrompt(audio=self._new_recording())
        config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(prompt=prompt))
        request = tts_service_pb2.SynthesizeRequest(text=TEXTS[0], config=config)
        async with grpc.aio.insecure_channel(f"{HOST}:{self._doors.grpc}") as channel:
            heard = 0
            try:
                async for answer in _stub(channel).Synthesize(request):
                    heard += len(answer.audio.content)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise RefusedError(None) from error
                raise
        if not heard:
            raise ConnectionError("no audio in a voice that came with the request")

    async def _create_and_delete(self) -> None:
        name = f"soak{self._rng.randrange(10**9)}"
        form = {"consent": "of the soak", "name": name}
        files = {"audio_sample": ("voice.wav", self._new_recording(), "audio/wav")}
        async with self._client() as client:
            _checked(await client.post("/v1/audio/voices", data=form, files=files))
            try:
                await self._listen(name)
            finally:
                _checked(await client.delete(f"/v1/audio/voices/{name}"))

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._doors.url, timeout=TIMEOUT_S, trust_env=False)


def _checked(answer: httpx.Response) -> httpx.Response:
    """Return an answer that is one.

    Raises:
        RefusedError: there is no room now.
        ConnectionError: it is an error.
    """
    if answer.status_code in (_HTTP_TOO_MANY, _HTTP_UNAVAILABLE):
        raise RefusedError(None)
    if answer.status_code != _HTTP_OK:
        raise ConnectionError(f"{answer.status_code} {answer.text[:200]}")
    return answer
