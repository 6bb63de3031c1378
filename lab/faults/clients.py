"""Callers of the gateway under test: those who listen to the end, and those who do it harm."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
from riva.proto import riva_tts_pb2
from riva.proto.riva_tts_pb2_grpc import RivaSpeechSynthesisStub
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from servicekit.tasks import stop
from servicekit.timeouts import timeout
from tests.raw_clients import HOST, PREFACE, SETTINGS, connected, frame, receive, reset_rapidly, send

TIMEOUT_S = 90.0
TEXTS = (
    "The first caller asks for the time of the next train to the coast.",
    "A second voice reads the weather, and it will rain in the afternoon.",
    "Somebody counts the boats that come back before it is dark.",
    "The fourth of them tells a friend about the garden and the dog.",
    "Nobody knows who painted the door of the old house by the lake.",
    "At last a child asks whether the moon follows them on the way home.",
)
_HTTP_OK, _HTTP_TOO_MANY, _HTTP_UNAVAILABLE = 200, 429, 503
_SOCKET_S, _UPLOAD_S = 3.0, 10.0


@dataclass(frozen=True)
class Answer:
    """What one caller heard."""

    text: int
    """Number of the request's text, which is its seed too."""
    status: int
    """Status of HTTP; 0: none came."""
    pcm: bytes
    """Audio received: 16-bit samples at 24 kHz."""
    seconds: float
    error: str | None
    """What went wrong; None if the answer ended as HTTP's should."""

    @property
    def is_refused(self) -> bool:
        """Whether it was told at once that there is no room, or nobody who could speak."""
        return self.status in (_HTTP_TOO_MANY, _HTTP_UNAVAILABLE)

    @property
    def is_whole(self) -> bool:
        """Whether the audio came to its end."""
        return self.status == _HTTP_OK and self.error is None and bool(self.pcm)


async def speak(url: str, text: int) -> Answer:
    """Ask for one text and listen to the end."""
    body = {"model": "cosydit", "input": TEXTS[text], "voice": "default", "response_format": "pcm", "seed": text}
    began_s, pieces, status, error = time.monotonic(), list[bytes](), 0, None
    try:
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=False) as client,
            client.stream("POST", f"{url}/v1/audio/speech", json=body) as answer,
        ):
            status = answer.status_code
            if status != _HTTP_OK:
                error = (await answer.aread())[:300].decode(errors="replace")
            else:
                async for piece in answer.aiter_bytes():
                    pieces.append(piece)
    except httpx.HTTPError as failure:
        error = repr(failure)
    return Answer(text, status, b"".join(pieces), time.monotonic() - began_s, error)


@dataclass(frozen=True)
class Doors:
    """Where the gateway listens."""

    http: int
    grpc: int
    wyoming: int

    @property
    def url(self) -> str:
        """Of HTTP."""
        return f"http://{HOST}:{self.http}"


BadClient = Callable[[Doors, random.Random], Awaitable[None]]


def _speech_request(text: str) -> bytes:
    body = f'{{"model": "cosydit", "input": "{text}", "voice": "default", "response_format": "pcm"}}'.encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def vanish(doors: Doors, rng: random.Random) -> None:
    """Ask for speech, listen for a moment, and be gone."""
    async with connected(doors.http) as connection:
        await send(connection, _speech_request(rng.choice(TEXTS)))
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await receive(connection, 1000, 0.2)


async def read_a_byte_a_second(doors: Doors, rng: random.Random) -> None:
    """Ask for a long text, read next to nothing for some seconds, and be gone."""
    async with connected(doors.http, receive_bytes=2048) as connection:
        await send(connection, _speech_request(" ".join(TEXTS)))
        for _ in range(rng.randrange(2, 5)):
            await receive(connection, 1, 1.0)
            await asyncio.sleep(1.0)


async def drip_an_upload(doors: Doors, rng: random.Random) -> None:
    """Announce a recording and send it a few bytes at a time."""
    async with connected(doors.http) as connection:
        head = f"POST /v1/audio/voices HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: multipart/form-data; boundary=x\r\n"
        await send(connection, f"{head}content-length: 1000000\r\n\r\n--x\r\n".encode())
        for _ in range(rng.randrange(20, 60)):
            await send(connection, rng.randbytes(rng.randrange(1, 9)))
            await asyncio.sleep(0.05)


async def send_half_a_head(doors: Doors, rng: random.Random) -> None:
    """Begin many requests and end none."""
    async with connected(doors.http) as one, connected(doors.http) as other:
        for connection in (one, other):
            await send(connection, b"POST /v1/audio/speech HTTP/1.1\r\nhost: " + b"x" * rng.randrange(200))
        await asyncio.sleep(rng.uniform(0.5, 2.0))


async def send_garbage_to_http(doors: Doors, rng: random.Random) -> None:
    """Send bytes that are no HTTP."""
    for _ in range(20):
        async with connected(doors.http) as connection:
            await send(connection, rng.randbytes(rng.randrange(1, 4000)))
            await receive(connection, 1000, 0.05)


async def send_garbage_to_grpc(doors: Doors, rng: random.Random) -> None:
    """Send bytes that are no HTTP/2, and frames that are none."""
    for number in range(20):
        async with connected(doors.grpc) as connection:
            begin = PREFACE + frame(SETTINGS, 0, 0) if number % 2 else b""
            await send(connection, begin + rng.randbytes(rng.randrange(1, 4000)))
            await receive(connection, 1000, 0.05)


async def break_a_websocket(doors: Doors, rng: random.Random) -> None:
    """Open sockets; send what is no message, or begin to speak and be gone."""
    begin = '{"type": "session.config", "response_format": "pcm"}'
    texts = (begin, '{"type": "input.text", "text": "Hello there, this is', "[" * 5000, "\x00", '{"type": 5}')
    for _ in range(4):
        with suppress(OSError, WebSocketException, asyncio.TimeoutError):
            async with timeout(_SOCKET_S), connect(f"ws{doors.url[4:]}/v1/audio/speech/stream", proxy=None) as ws:
                for text in rng.choices(texts, k=3):
                    await ws.send(text)
                ws.transport.abort()


async def cancel_calls(doors: Doors, rng: random.Random) -> None:
    """Begin to speak over gRPC, a whole text or one that is written, and cancel at any moment."""
    config = {"config": {"voice": {"name": "default"}}}
    async with grpc.aio.insecure_channel(f"{HOST}:{doors.grpc}") as channel:
        stub = tts_service_pb2_grpc.TextToSpeechServiceStub(channel)  # type: ignore[no-untyped-call]

        def speak(number: int) -> Any:
            if number % 2:
                return stub.StreamingSynthesize(
                    tts_service_pb2.StreamingSynthesizeRequest(**each) for each in (config, {"text": TEXTS[0]})
                )
            return stub.Synthesize(tts_service_pb2.SynthesizeRequest(text=rng.choice(TEXTS), **config))

        await asyncio.gather(*(_cancel_soon(speak(number), rng) for number in range(4)))


async def cancel_riva_calls(doors: Doors, rng: random.Random) -> None:
    """Begin to speak as Riva's clients do, and cancel at any moment."""
    asked = riva_tts_pb2.SynthesizeSpeechRequest(
        text=" ".join(TEXTS), language_code="en-US", voice_name="default", sample_rate_hz=24000, encoding="LINEAR_PCM"
    )
    async with grpc.aio.insecure_channel(f"{HOST}:{doors.grpc}") as channel:
        online = RivaSpeechSynthesisStub(channel).SynthesizeOnline  # type: ignore[no-untyped-call]
        await asyncio.gather(*(_cancel_soon(online(iter([asked])), rng) for _ in range(4)))


async def _cancel_soon(call: Any, rng: random.Random) -> None:
    async def read() -> None:
        with suppress(grpc.RpcError):
            async for _ in call:
                pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    call.cancel()
    await stop(reading)


async def leave_wyoming(doors: Doors, rng: random.Random) -> None:
    """Have a text spoken over Wyoming, and be gone at any moment."""
    event = json.dumps({"type": "synthesize", "data": {"text": " ".join(TEXTS)}})

    async def speak_and_leave() -> None:
        async with connected(doors.wyoming) as connection:
            await send(connection, f"{event}\n".encode())
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await receive(connection, 1000, 0.2)

    await asyncio.gather(*(speak_and_leave() for _ in range(4)))


async def upload(doors: Doors, rng: random.Random, audio: bytes) -> None:
    """Have a voice made of a recording, whatever comes of it."""
    form = {"consent": "yes", "name": f"voice{rng.randrange(1 << 30)}"}
    async with httpx.AsyncClient(timeout=_UPLOAD_S, trust_env=False, verify=False) as client:
        with suppress(httpx.HTTPError):
            await client.post(f"{doors.url}/v1/audio/voices", data=form, files={"audio_sample": ("a", audio)})


async def leave_sockets(doors: Doors, rng: random.Random) -> None:
    """Have a text spoken over a WebSocket, and be gone at any moment."""
    begin = '{"type": "session.config", "response_format": "pcm"}'
    text = json.dumps({"type": "input.text", "text": " ".join(TEXTS)})

    async def speak_and_leave() -> None:
        with suppress(OSError, WebSocketException, asyncio.TimeoutError):
            async with timeout(_SOCKET_S), connect(f"ws{doors.url[4:]}/v1/audio/speech/stream", proxy=None) as ws:
                for message in (begin, text):
                    await ws.send(message)
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                ws.transport.abort()

    await asyncio.gather(*(speak_and_leave() for _ in range(4)))


async def hold_idle_connections(doors: Doors, rng: random.Random) -> None:
    """Open a hundred connections to each door and say nothing."""
    async with AsyncExitStack() as held:
        for port in (doors.http, doors.grpc):
            for _ in range(100):
                await held.enter_async_context(connected(port))
        await asyncio.sleep(rng.uniform(0.5, 2.0))


BAD_CLIENTS: Mapping[str, BadClient] = {
    "a client vanishes": vanish,
    "a client reads a byte a second": read_a_byte_a_second,
    "an upload drips": drip_an_upload,
    "half a head": send_half_a_head,
    "garbage to HTTP": send_garbage_to_http,
    "garbage to gRPC": send_garbage_to_grpc,
    "HTTP/2 rapid reset": lambda doors, rng: reset_rapidly(doors.grpc, rng),
    "a broken WebSocket": break_a_websocket,
    "cancelled gRPC calls": cancel_calls,
    "cancelled Riva calls": cancel_riva_calls,
    "Wyoming clients that leave": leave_wyoming,
    "WebSockets that are left": leave_sockets,
    "idle connections": hold_idle_connections,
}
