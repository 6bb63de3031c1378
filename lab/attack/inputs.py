"""What attackers send: each function makes one input, from the connection to its end, which comes soon."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
from websockets.asyncio.client import connect

from lab.attack.payloads import MIB, SPEECH, film
from lab.attack.target import LOUD, MAX_VOICES, QUIET, Ports, children, foreign_addresses
from servicekit.timeouts import timeout
from tests.gateway.doors.raw_http2 import HEALTH, raw_http2
from tests.gateway.voices.recorded import recording
from tests.raw_clients import HOST, connected, receive, reset_rapidly, send

HOLD_S = 0.5
"""Seconds that an attacker keeps what it has begun."""
MOST_S = 3.0
"""Seconds after which an attacker leaves, whatever it waits for."""
REPLACED_S = 60.0
"""Most seconds until a process that hangs is replaced."""
_REPORT_S = 12.0
_BYTES_A_SECOND = 48_000
_BEARER = {"authorization": f"Bearer {LOUD}"}
WITH_KEY = tuple(_BEARER.items())


async def unfinished(
    ports: Ports, rng: random.Random, path: str, headers: tuple[tuple[str, str], ...], declared: int
) -> None:
    async with raw_http2(ports.grpc) as client:
        await client.send(client.call(path, headers), declared, rng.randrange(declared // 2, declared))
        await asyncio.sleep(HOLD_S)


async def silent_calls(
    ports: Ports, rng: random.Random, path: str, headers: tuple[tuple[str, str], ...] = WITH_KEY
) -> None:
    async with raw_http2(ports.grpc) as client:
        for _ in range(rng.randrange(50, 300)):
            client.call(path, headers)
        await asyncio.sleep(HOLD_S)


async def grpc_call(ports: Ports, rng: random.Random, path: str, request: Callable[[], bytes]) -> None:
    """Call with a message; read what comes for a moment."""
    async with grpc.aio.insecure_channel(f"{HOST}:{ports.grpc}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_stream(path)(request(), metadata=WITH_KEY, timeout=MOST_S)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(call.read(), rng.uniform(0.2, 2.0))
        call.cancel()


async def bomb(ports: Ports, rng: random.Random) -> None:
    address, compression = f"{HOST}:{ports.grpc}", grpc.Compression.Gzip
    async with grpc.aio.insecure_channel(address, compression=compression) as channel:
        await channel.unary_unary(HEALTH)(bytes(rng.randrange(8, 16) * MIB), timeout=MOST_S)


async def silent(ports: Ports, rng: random.Random, door: str) -> None:
    async with AsyncExitStack() as held:
        for _ in range(rng.randrange(20, 60)):
            await held.enter_async_context(connected(getattr(ports, door)))
        await asyncio.sleep(HOLD_S)


async def raw(ports: Ports, rng: random.Random, door: str, data: Callable[[random.Random], bytes]) -> None:
    """Send some bytes, and nothing more."""
    async with connected(getattr(ports, door)) as connection:
        await send(connection, data(rng))
        await receive(connection, 1000, HOLD_S)


async def post(ports: Ports, rng: random.Random, path: str, body: Callable[[], bytes]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client:
        headers = {**_BEARER, "content-type": "application/json"}
        await client.post(f"http://{HOST}:{ports.http}{path}", content=body(), headers=headers)


async def drip(ports: Ports, rng: random.Random) -> None:
    """Send a body byte by byte, behind the answer that refuses it."""
    async with connected(ports.http) as connection:
        await send(connection, f"POST {SPEECH} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 1000\r\n\r\n".encode())
        for _ in range(rng.randrange(3, 10)):
            await send(connection, b" ")
            await asyncio.sleep(HOLD_S / 5)


async def record(ports: Ports, rng: random.Random) -> None:
    form = {"consent": "yes", "name": f"film{rng.randrange(10**9)}", "ref_text": "a voice"}
    files = {"audio_sample": ("a.webm", film(rng.choice((2e9, 1e6, 384_000.0))), "audio/webm")}
    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client:
        await client.post(f"http://{HOST}:{ports.http}/v1/audio/voices", data=form, files=files, headers=_BEARER)


async def read_slowly(ports: Ports, rng: random.Random) -> None:
    body = {"model": "m", "voice": "default", "response_format": "pcm", "input": "A long text goes on and on. " * 150}
    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client, timeout(rng.uniform(1.0, 3.0)):
        url = f"http://{HOST}:{ports.http}/v1/audio/speech"
        async with client.stream("POST", url, json=body, headers=_BEARER) as answer:
            async for _ in answer.aiter_raw(4800):
                await asyncio.sleep(0.1)


async def read_in_real_time(ports: Ports, rng: random.Random) -> None:
    """Read twelve long texts at once, each as fast as it is heard."""

    async def one(client: httpx.AsyncClient) -> None:
        body = {"model": "m", "voice": "default", "response_format": "pcm", "input": "A long text goes on. " * 150}
        async with client.stream("POST", f"http://{HOST}:{ports.http}{SPEECH}", json=body, headers=_BEARER) as answer:
            async for pcm in answer.aiter_raw(4800):
                await asyncio.sleep(len(pcm) / _BYTES_A_SECOND)

    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client:
        await asyncio.gather(*(one(client) for _ in range(12)))


async def fill_voices(ports: Ports, rng: random.Random) -> None:
    """Create voices until the gateway takes no more.

    Raises:
        AssertionError: it takes another number than half of its limit, or another key can't create any.
    """
    url, sample = f"http://{HOST}:{ports.http}/v1/audio/voices", recording("m4a", 4.0)

    async def create(client: httpx.AsyncClient, key: str) -> int:
        form = {"consent": "yes", "name": f"v{rng.randrange(10**9)}"}
        files = {"audio_sample": ("a.m4a", sample, "audio/mp4")}
        answer = await client.post(url, data=form, files=files, headers={"authorization": f"Bearer {key}"})
        return answer.status_code

    async with httpx.AsyncClient(trust_env=False, timeout=MOST_S) as client:
        statuses = [await create(client, LOUD) for _ in range(MAX_VOICES + 1)]
        created = sum(status < 300 for status in statuses)
        assert created == MAX_VOICES // 2, f"one key created {created} of {MAX_VOICES}: {statuses}"
        assert (status := await create(client, QUIET)) < 300, f"another key is told {status}"


async def silence_process(ports: Ports, rng: random.Random) -> None:
    """Have one of the gateway's processes stand still, as if it hung; return when another has its place.

    Raises:
        AssertionError: none takes it.
    """
    before, until_s = children(ports.pid), time.monotonic() + REPLACED_S
    hung = rng.choice(before)
    os.kill(hung, signal.SIGSTOP)
    while hung in (now := children(ports.pid)) or len(now) < len(before):
        assert time.monotonic() < until_s, f"process {hung} of {before} hangs, and there are {now}"
        await asyncio.sleep(0.1)


async def report_home(ports: Ports, rng: random.Random) -> None:
    """Import what reports to its maker as our services do, and wait for longer than it waits.

    Raises:
        AssertionError: it asks for an address, or writes into its user's home.
    """
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-B", "-c", f"import token2wav_service, onnxruntime, time; time.sleep({_REPORT_S})"]
        environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        running = await asyncio.create_subprocess_exec(*command, env={**environment, "HOME": home})
        found = set[str]()
        while running.returncode is None:
            found |= foreign_addresses([running.pid])
            await asyncio.sleep(0.05)
        written = [str(path) for path in Path(home).rglob("*")]
    assert (running.returncode, found, written) == (0, set(), [])


@asynccontextmanager
async def _socket(ports: Ports) -> AsyncIterator[Any]:
    url = f"ws://{HOST}:{ports.http}/v1/audio/speech/stream"
    async with connect(url, additional_headers=_BEARER, proxy=None, compression=None, close_timeout=HOLD_S) as socket:
        yield socket


async def fragments(ports: Ports, rng: random.Random, size: int, count: int) -> None:
    async def pieces() -> AsyncIterator[str]:
        for _ in range(rng.randrange(count // 2, count)):
            yield "x" * size
        await asyncio.sleep(HOLD_S)

    async with _socket(ports) as socket:
        await socket.send(pieces())


async def message(ports: Ports, rng: random.Random, text: Callable[[], str]) -> None:
    async with _socket(ports) as socket:
        await socket.send(text())
        await asyncio.wait_for(socket.recv(), rng.uniform(0.2, 1.0))


async def messages(ports: Ports, rng: random.Random) -> None:
    """Send many small messages."""
    async with _socket(ports) as socket:
        for _ in range(rng.randrange(1000, 5000)):
            await socket.send("{}")
        await asyncio.wait_for(socket.recv(), HOLD_S)


async def reset(ports: Ports, rng: random.Random) -> None:
    await reset_rapidly(ports.grpc, rng)
