"""One request through each of the gateway's doors, by a client that sees a refusal and when to come back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gateway.audio.codecs import PCM16_BYTES
from token2wav_service.contract import SAMPLE_RATE_HZ

_WHO = "fox dog cat hen rat pig ape owl elk cow bat".split()
_WHERE = "old new big wet dry red low mad far icy hot".split()
VOICE = "default"
_TOO_MANY = 429
_RETRY_AFTER = "retry-after"
_SOCKET_CONFIG = {"type": "session.config", "voice": VOICE, "response_format": "pcm", "stream_audio": True}

# The stubs have no types.
_tts_stub: Callable[[Any], Any] = tts_service_pb2_grpc.TextToSpeechServiceStub
_riva_stub: Callable[[Any], Any] = riva_tts_pb2_grpc.RivaSpeechSynthesisStub


class RefusedError(Exception):
    """The gateway has no room for the request now."""

    def __init__(self, retry_after_s: float | None) -> None:
        """Keep when it said to come back, if it did."""
        super().__init__(f"refused, come back in {retry_after_s} s")
        self.retry_after_s = retry_after_s


Heard = Callable[[float], None]
"""Gets the seconds of each piece of audio when it comes."""
Ask = Callable[[str, str, Heard], Awaitable[None]]
"""Asks with an API key for a text and returns at its end; raises RefusedError."""


def text_of(caller: int) -> str:
    """Return what a caller says: of one length for all, and another text for each of the first 1331."""
    rest, who = divmod(caller, len(_WHO))
    where, whom = divmod(rest, len(_WHO))
    place = _WHERE[where % len(_WHERE)]
    return f"The quick brown {_WHO[who]} jumps over the lazy {_WHO[whom]} near the {place} river bank."


@dataclass(frozen=True)
class Ports:
    """Where the gateway listens on this machine."""

    http: int
    grpc: int


@asynccontextmanager
async def _http(ports: Ports) -> AsyncIterator[Ask]:
    url = f"http://127.0.0.1:{ports.http}/v1/audio/speech"
    body = {"model": "m", "voice": VOICE, "response_format": "pcm"}
    limits = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session:

        async def ask(key: str, text: str, heard: Heard) -> None:
            headers = {"authorization": f"Bearer {key}"}
            async with session.post(url, json={**body, "input": text}, headers=headers) as answer:
                if answer.status == _TOO_MANY:
                    await answer.read()
                    raise RefusedError(float(answer.headers[_RETRY_AFTER]))
                answer.raise_for_status()
                async for pcm in answer.content.iter_any():
                    heard(len(pcm) / PCM16_BYTES / SAMPLE_RATE_HZ)

        yield ask


def _grpc_door(start: Callable[[Any, Any, str], Any], audio_of: Callable[[Any], bytes]) -> Any:
    @asynccontextmanager
    async def opened(ports: Ports) -> AsyncIterator[Ask]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:

            async def ask(key: str, text: str, heard: Heard) -> None:
                try:
                    async for answer in start(channel, (("authorization", f"Bearer {key}"),), text):
                        heard(len(audio_of(answer)) / PCM16_BYTES / SAMPLE_RATE_HZ)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    retry_after = dict(error.trailing_metadata() or ()).get(_RETRY_AFTER)
                    raise RefusedError(None if retry_after is None else float(retry_after)) from error

            yield ask

    return opened


def _own(channel: Any, metadata: Any, text: str) -> Any:
    config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(name=VOICE))
    request = tts_service_pb2.SynthesizeRequest(text=text, config=config)
    return _tts_stub(channel).Synthesize(request, metadata=metadata)


def _riva(channel: Any, metadata: Any, text: str) -> Any:
    request = riva_tts_pb2.SynthesizeSpeechRequest(text=text, voice_name=VOICE, sample_rate_hz=SAMPLE_RATE_HZ)
    return _riva_stub(channel).SynthesizeOnline(iter([request]), metadata=metadata)


@asynccontextmanager
async def _socket(ports: Ports) -> AsyncIterator[Ask]:
    url = f"ws://127.0.0.1:{ports.http}/v1/audio/speech/stream"

    async def ask(key: str, text: str, heard: Heard) -> None:
        headers = {"authorization": f"Bearer {key}"}
        async with connect(url, proxy=None, additional_headers=headers, open_timeout=None, max_size=None) as socket:
            for message in (_SOCKET_CONFIG, {"type": "input.text", "text": text}, {"type": "input.done"}):
                await socket.send(json.dumps(message))
            await _listen(socket, heard)

    yield ask


async def _listen(socket: Any, heard: Heard) -> None:
    try:
        async for raw in socket:
            if isinstance(raw, bytes):
                heard(len(raw) / PCM16_BYTES / SAMPLE_RATE_HZ)
                continue
            told = json.loads(raw)
            if told.get("type") == "error":
                raise RefusedError(told.get("retry_after_s"))
            if told.get("type") == "session.done":
                return
    except ConnectionClosed as error:
        raise ConnectionError(f"the socket closed: {error}") from error
    raise ConnectionError("the socket closed before session.done")


DOORS: dict[str, Callable[[Ports], Any]] = {
    "http": _http,
    "grpc": _grpc_door(_own, lambda answer: bytes(answer.audio.content)),
    "riva": _grpc_door(_riva, lambda answer: bytes(answer.audio)),
    "socket": _socket,
}
"""Door -> opens a client of it and gives an `Ask`."""
