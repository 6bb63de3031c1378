"""What attackers send, as a table: door, kind of harm, and who makes the input. Loopback only, and each ends soon."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import grpc
import httpx
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from servicekit.timeouts import timeout
from tests.gateway.doors.raw_http2 import HEALTH, STREAMING, SYNTHESIZE, raw_http2
from tests.gateway.voices.recorded import matroska
from tests.raw_clients import HOST, connected, receive, reset_rapidly, send

KEY = "attack-loud-key-0123456789"
HOLD_S = 0.5
"""Seconds that an attacker keeps what it has begun."""
MOST_S = 10.0
"""Seconds after which an attacker leaves, whatever it waits for."""
AT_ONCE = 8
"""Attackers at once."""
NICE = 10
"""The attackers' process goes behind the gateway's: attackers have machines of their own."""
_BEARER = {"authorization": f"Bearer {KEY}"}
_WITH_KEY = tuple(_BEARER.items())
_SPEECH = "/v1/audio/speech"
_RULES = "/v1/pronunciation-dictionaries/add-from-rules"
_RIVA = "/nvidia.riva.tts.RivaSpeechSynthesis"
_LARGEST = 4 * 2**20 - 5
_MIB = 2**20
_LEFT = (OSError, asyncio.TimeoutError, grpc.aio.AioRpcError, httpx.HTTPError, WebSocketException)
"""What an attacker sees of a gateway that defends itself."""


@dataclass(frozen=True)
class Ports:
    """Where the gateway under attack listens."""

    http: int
    grpc: int
    wyoming: int
    metrics: int


Make = Callable[[Ports, random.Random], Awaitable[None]]


async def _unfinished(
    ports: Ports, rng: random.Random, path: str, headers: tuple[tuple[str, str], ...], declared: int
) -> None:
    async with raw_http2(ports.grpc) as client:
        await client.send(client.call(path, headers), declared, rng.randrange(declared // 2, declared))
        await asyncio.sleep(HOLD_S)


async def _silent_calls(
    ports: Ports, rng: random.Random, path: str, headers: tuple[tuple[str, str], ...] = _WITH_KEY
) -> None:
    async with raw_http2(ports.grpc) as client:
        for _ in range(rng.randrange(50, 300)):
            client.call(path, headers)
        await asyncio.sleep(HOLD_S)


async def _grpc_call(ports: Ports, rng: random.Random, path: str, request: Callable[[], bytes]) -> None:
    """Call with a message; read what comes for a moment."""
    async with grpc.aio.insecure_channel(f"{HOST}:{ports.grpc}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_stream(path)(request(), metadata=_WITH_KEY, timeout=MOST_S)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(call.read(), rng.uniform(0.2, 2.0))
        call.cancel()


async def _bomb(ports: Ports, rng: random.Random) -> None:
    address, compression = f"{HOST}:{ports.grpc}", grpc.Compression.Gzip
    async with grpc.aio.insecure_channel(address, compression=compression) as channel:
        await channel.unary_unary(HEALTH)(bytes(rng.randrange(8, 16) * _MIB), timeout=MOST_S)


async def _silent(ports: Ports, rng: random.Random, door: str) -> None:
    async with AsyncExitStack() as held:
        for _ in range(rng.randrange(20, 60)):
            await held.enter_async_context(connected(getattr(ports, door)))
        await asyncio.sleep(HOLD_S)


async def _raw(ports: Ports, rng: random.Random, door: str, data: Callable[[random.Random], bytes]) -> None:
    """Send some bytes, and nothing more."""
    async with connected(getattr(ports, door)) as connection:
        await send(connection, data(rng))
        await receive(connection, 1000, HOLD_S)


async def _post(ports: Ports, rng: random.Random, path: str, body: Callable[[], bytes]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client:
        headers = {**_BEARER, "content-type": "application/json"}
        await client.post(f"http://{HOST}:{ports.http}{path}", content=body(), headers=headers)


async def _record(ports: Ports, rng: random.Random) -> None:
    form = {"consent": "yes", "name": f"film{rng.randrange(10**9)}", "ref_text": "a voice"}
    files = {"audio_sample": ("a.webm", _film(rng.choice((2e9, 1e6, 384_000.0))), "audio/webm")}
    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client:
        await client.post(f"http://{HOST}:{ports.http}/v1/audio/voices", data=form, files=files, headers=_BEARER)


async def _read_slowly(ports: Ports, rng: random.Random) -> None:
    body = {"model": "m", "voice": "default", "response_format": "pcm", "input": "A long text goes on and on. " * 150}
    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client, timeout(rng.uniform(1.0, 3.0)):
        url = f"http://{HOST}:{ports.http}/v1/audio/speech"
        async with client.stream("POST", url, json=body, headers=_BEARER) as answer:
            async for _ in answer.aiter_raw(4800):
                await asyncio.sleep(0.1)


@asynccontextmanager
async def _socket(ports: Ports) -> AsyncIterator[Any]:
    url = f"ws://{HOST}:{ports.http}/v1/audio/speech/stream"
    async with connect(url, additional_headers=_BEARER, proxy=None, compression=None) as socket:
        yield socket


async def _fragments(ports: Ports, rng: random.Random, size: int, count: int) -> None:
    async def pieces() -> AsyncIterator[str]:
        for _ in range(rng.randrange(count // 2, count)):
            yield "x" * size
        await asyncio.sleep(HOLD_S)

    async with _socket(ports) as socket:
        await socket.send(pieces())


async def _message(ports: Ports, rng: random.Random, text: Callable[[], str]) -> None:
    async with _socket(ports) as socket:
        await socket.send(text())
        await asyncio.wait_for(socket.recv(), rng.uniform(0.2, 1.0))


@cache
def _film(rate_hz: float) -> bytes:
    return matroska(rate_hz)


def _entries(field: str, most: int) -> str:
    """Write as many entries as fit."""
    is_map = field == "pronunciations"
    entries = ", ".join(f'"w{number}": "v"' if is_map else f'"w{number}"' for number in range(most // 8))
    opened, closed = ("{", "}") if is_map else ("[", "]")
    within = entries[:most].rpartition(", ")[0] or entries
    return f'"{field}": {opened}{within}{closed}'


@cache
def _speech(field: str) -> bytes:
    return f'{{"model": "m", "voice": "default", "input": "Hello.", {_entries(field, _MIB - 300)}}}'.encode()


@cache
def _tiny_temperature() -> bytes:
    return b'{"model": "m", "voice": "default", "input": "Hello.", "response_format": "pcm", "temperature": 5e-324}'


@cache
def _rules() -> bytes:
    rule = '{"type": "alias", "string_to_replace": "a", "alias": "b"}'
    return f'{{"rules": [{", ".join([rule] * 10_000)}]}}'.encode()


@cache
def _config(count: int) -> bytes:
    config = speech_pb2.SpeechConfig(pronunciations={f"word{number}": "v" for number in range(count)})
    return bytes(tts_service_pb2.SynthesizeRequest(text="Hello.", config=config).SerializeToString()[:_LARGEST])


@cache
def _dictionary(megabytes: float) -> bytes:
    words = ",".join(f"w{number}  v" for number in range(int(megabytes * _MIB / 12)))
    request = riva_tts_pb2.SynthesizeSpeechRequest(text="hello", sample_rate_hz=24000, custom_dictionary=words)
    return bytes(request.SerializeToString())


def _head(rng: random.Random) -> bytes:
    return b"GET / HTTP/1.1\r\nx: " + b"x" * rng.randrange(60_000)


def _body(rng: random.Random) -> bytes:
    head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {_MIB}\r\n\r\n".encode() + b" " * rng.randrange(_MIB // 2, _MIB)


def _event(rng: random.Random) -> bytes:
    return b'{"type": "synthesize", "data_length": 1000000}\n' + b" " * rng.randrange(900_000)


def _garbage(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 100_000))


@cache
def _settings() -> str:
    return f'{{"type": "session.config", {_entries("pronunciations", 250_000)}}}'


async def _reset(ports: Ports, rng: random.Random) -> None:
    await reset_rapidly(ports.grpc, rng)


TABLE: tuple[tuple[str, str, Make], ...] = (
    ("gRPC", "a message above the limit, no key", partial(_unfinished, path=HEALTH, headers=(), declared=63 * _MIB)),
    (
        "gRPC",
        "a large message without end, no key",
        partial(_unfinished, path=HEALTH, headers=(), declared=_LARGEST),
    ),
    ("gRPC", "the same with a key", partial(_unfinished, path=STREAMING, headers=_WITH_KEY, declared=_LARGEST)),
    ("gRPC", "a compressed bomb", _bomb),
    ("gRPC", "calls without a message, no key", partial(_silent_calls, path=HEALTH, headers=())),
    ("gRPC", "calls without a message", partial(_silent_calls, path=SYNTHESIZE)),
    ("gRPC", "many pronunciations", partial(_grpc_call, path=SYNTHESIZE, request=partial(_config, 200_000))),
    ("gRPC", "silent sockets", partial(_silent, door="grpc")),
    ("gRPC", "garbage", partial(_raw, door="grpc", data=_garbage)),
    ("gRPC", "rapid reset", _reset),
    ("Riva", "a large dictionary", partial(_grpc_call, path=f"{_RIVA}/Synthesize", request=partial(_dictionary, 3.5))),
    ("Riva", "a small dictionary", partial(_grpc_call, path=f"{_RIVA}/Synthesize", request=partial(_dictionary, 0.1))),
    ("Riva", "calls without a message", partial(_silent_calls, path=f"{_RIVA}/SynthesizeOnline")),
    (
        "HTTP",
        "many pronunciations",
        partial(_post, path=_SPEECH, body=partial(_speech, "pronunciations")),
    ),
    ("HTTP", "many lexicons", partial(_post, path=_SPEECH, body=partial(_speech, "lexicons"))),
    ("HTTP", "a recording whose header lies", _record),
    ("HTTP", "long texts, read slowly", _read_slowly),
    (
        "HTTP",
        "rules for a dictionary",
        partial(_post, path=_RULES, body=_rules),
    ),
    ("HTTP", "a tiny temperature", partial(_post, path=_SPEECH, body=_tiny_temperature)),
    ("HTTP", "half a head", partial(_raw, door="http", data=_head)),
    ("HTTP", "a body without an end", partial(_raw, door="http", data=_body)),
    ("HTTP", "silent sockets", partial(_silent, door="http")),
    ("WebSocket", "a message without an end", partial(_fragments, size=_MIB, count=4)),
    ("WebSocket", "small fragments", partial(_fragments, size=1, count=20_000)),
    ("WebSocket", "many pronunciations", partial(_message, text=_settings)),
    ("WebSocket", "deep JSON", partial(_message, text=lambda: "[" * 100_000)),
    ("Wyoming", "silent sockets", partial(_silent, door="wyoming")),
    ("Wyoming", "an event without an end", partial(_raw, door="wyoming", data=_event)),
    ("Wyoming", "garbage", partial(_raw, door="wyoming", data=_garbage)),
    ("metrics", "silent sockets", partial(_silent, door="metrics")),
    ("metrics", "garbage", partial(_raw, door="metrics", data=_garbage)),
)
"""Door, what is wrong with the input, and who sends it. The rest of what was found needs a process that hangs
(`lab.faults`) or one key and much time (`lab.load.storms`)."""
DOORS = tuple(dict.fromkeys(door for door, _, _ in TABLE))


async def attack(ports: Ports, door: str, count: int, seed: int) -> None:
    """Send so many inputs to a door, each kind in turn."""
    makes = [make for each, _, make in TABLE if each == door]
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            with suppress(*_LEFT):
                async with timeout(MOST_S):
                    await makes[number % len(makes)](ports, random.Random(f"{seed} {door} {number}"))

    await asyncio.gather(*(one(number) for number in range(count)))


def run(ports: Ports, door: str, count: int, seed: int) -> None:
    """Attack a door, in a process of its own."""
    os.nice(NICE)
    asyncio.run(attack(ports, door, count, seed))
