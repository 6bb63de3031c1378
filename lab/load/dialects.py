"""The gateway's dialects, each served over loopback and asked by a client for one short text.

A dialect adds itself to `DIALECTS`: a name, and a context that serves it and gives a function which makes one request
and returns when its first byte of speech was there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.dialects.openai import http as openai_http
from gateway.host import Host, HostLimits
from gateway.lifecycle.readiness import Readiness
from gateway.speech.request import SpeechRequest
from gateway.voices.registry import NamedVoice, VoiceRegistry
from lab.load.instant import InstantLLM, InstantToken2Wav, instant_pipeline
from servicekit.clock import SystemClock

TEXT = "Hello there."
VOICE = "default"
_START_PAUSE_S = 0.005

Request = Callable[[], Awaitable[float]]
"""Makes one request; returns the seconds until its first byte of speech."""


@dataclass(frozen=True)
class Dialect:
    """A row of the table."""

    name: str
    serve: Callable[[Host], AbstractAsyncContextManager[Request]]


def instant_voices(recording: Path) -> VoiceRegistry:
    """Make a registry with one voice that needs no features; `recording` is any file."""
    return VoiceRegistry(InstantToken2Wav(), [NamedVoice(VOICE, recording, "")])


def instant_host(recording: Path, executor: Executor) -> Host:
    """Make a host of services that answer at once; `recording` is any file."""
    voices = instant_voices(recording)
    pipeline = instant_pipeline(voices)
    return Host(
        pipeline=pipeline,
        voices=voices,
        readiness=Readiness(pipeline, InstantLLM(), InstantToken2Wav(), VOICE),
        clock=SystemClock(),
        executor=executor,
        encode_text=lambda text: [0] * len(text),
        limits=HostLimits(run_ahead_s=math.inf),
    )


async def ask_pipeline(host: Host) -> float:
    """Return the seconds until the pipeline itself has its first samples, without any wire."""
    began_s = host.clock.now()
    async with aclosing(host.pipeline.synthesize(SpeechRequest(TEXT, VOICE))) as audio:
        async for chunk in audio:
            if len(chunk.samples):
                return host.clock.now() - began_s
    raise AssertionError("no audio")


@asynccontextmanager
async def _serve_openai(fields: dict[str, str], host: Host) -> AsyncIterator[Request]:
    app = Starlette(routes=openai_http.ROUTES)
    app.state.host = host
    body = {"model": "m", "input": TEXT, "voice": VOICE, **fields}
    async with serving(app) as url, aiohttp.ClientSession(url) as http:

        async def ask() -> float:
            began_s = host.clock.now()
            async with http.post(openai_http.PATH, json=body) as answer:
                answer.raise_for_status()
                await answer.content.readany()
                first_s = host.clock.now() - began_s
                await answer.read()
            return first_s

        yield ask


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an ASGI application as `python -m gateway` does; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(_START_PAUSE_S)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def _openai(name: str, **fields: str) -> Dialect:
    return Dialect(f"OpenAI, {name}", partial(_serve_openai, fields))


DIALECTS = (
    *(_openai(name, response_format=name) for name in ("pcm", "wav", "mp3", "opus", "aac", "flac")),
    *(_openai(f"{name} in SSE", response_format=name, stream_format="sse") for name in ("pcm", "mp3")),
)
