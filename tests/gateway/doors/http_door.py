"""Serves the real HTTP application on a free port, with both services faked, and clients of its sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import uvicorn
from starlette.types import ASGIApp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway.audio import AudioFormat
from gateway.chunking.policies import ExponentialChunks
from gateway.doors.http import build_app
from gateway.host import Host, HostLimits
from gateway.lexicons import LexiconBook
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.text import TextFrontEnd, load_text_front_end
from gateway.voices.profile import NO_ALIASES, VoiceAliases
from gateway.voices.registry import NamedVoice, VoiceRegistry
from gateway.voices.store import CreatedVoices
from servicekit.checkpoint_file import CheckpointDeclaration
from servicekit.clock import Clock, SystemClock
from tests.gateway.fakes import Behind, FakeLLM, FakeToken2Wav, make_host, make_pipeline, speech_deltas
from tests.virtual_time import ManualClock

ONE, TWO = "This is the first sentence of it.", "And here comes the second one, longer."
MULTI = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000"
AUTO = f"{MULTI}&auto_mode=true"
LIVEKIT = f"{AUTO}&sync_alignment=true&inactivity_timeout=180"
SINGLE = "/v1/text-to-speech/default/stream-input?output_format=pcm_24000"
STREAM = "/v1/audio/speech/stream"
MAX_MESSAGE_BYTES = 30_000
MAX_BODY_BYTES = 200_000
PATIENCE_S = 5
_MOMENTS = 20
_SPEAKERS = ("context-", "speak-", "speech_ws_")
"""How the names of tasks begin that belong to a connection."""


@dataclass
class Door(Behind):
    """A running server and what stands behind it."""

    url: str
    http: httpx.AsyncClient
    server: uvicorn.Server

    async def speak(self, **changes: object) -> httpx.Response:
        body = {"model": "cosydit", "input": "hello", "voice": "default", **changes}
        return await self.http.post("/v1/audio/speech", json=body)

    async def until_ready(self) -> None:
        """Return when the warm-up synthesis is over."""
        for _ in range(500):
            if (await self.http.get("/readyz")).status_code == 200:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the door did not become ready")

    @asynccontextmanager
    async def client(self, path: str, **options: Any) -> AsyncIterator[Client]:
        async with connect(f"ws{self.url.removeprefix('http')}{path}", proxy=None, **options) as connection:
            yield Client(connection)


class Client:
    """One connection, as a client sees it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def receive(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        message = json.loads(await asyncio.wait_for(self.connection.recv(), patience_s))
        assert isinstance(message, dict)
        return message

    async def until_final(self, *context_ids: str | None) -> dict[str | None, list[dict[str, Any]]]:
        """Receive until every context has ended; return each one's messages."""
        heard: dict[str | None, list[dict[str, Any]]] = {context_id: [] for context_id in context_ids}
        while not all(messages and messages[-1].get("isFinal") for messages in heard.values()):
            message = await self.receive()
            heard.setdefault(message.get("contextId"), []).append(message)
        return heard

    async def until_closed(self) -> tuple[int, list[dict[str, Any]]]:
        """Receive until the server closes; return its code and the messages."""
        messages = []
        try:
            while True:
                messages.append(await self.receive())
        except ConnectionClosed as closed:
            return (closed.rcvd.code if closed.rcvd is not None else 1006), messages


async def begin(client: Client, context_id: str = "c1", *texts: str) -> None:
    """Open a context as both clients do."""
    await client.send(text=" ", voice_settings={}, context_id=context_id)
    for text in texts:
        await client.send(text=text, context_id=context_id)


async def end(client: Client, context_id: str = "c1") -> None:
    await client.send(context_id=context_id, flush=True)
    await client.send(context_id=context_id, close_context=True)


@asynccontextmanager
async def opened_door(
    llm: FakeLLM,
    token2wav: FakeToken2Wav,
    voices: list[NamedVoice],
    *,
    clock: Clock | None = None,
    warmed_by: FakeLLM | None = None,
    store: CreatedVoices | None = None,
    aliases: VoiceAliases = NO_ALIASES,
    settings: PipelineSettings | None = None,
    front_end: TextFrontEnd | None = None,
    lexicons: LexiconBook | None = None,
    declaration: CheckpointDeclaration | None = None,
    default_format: AudioFormat = AudioFormat.WAV,
    **limits: Any,
) -> AsyncIterator[Door]:
    """Start the application and stop it again; with a declaration, texts are normalised and their languages told.

    Args:
        warmed_by: the LLM that speaks the warm-up; None: one of its own, so that a test meets its own requests only.
        limits: those of `HostLimits`.
    """
    if front_end is None and declaration is not None:
        front_end = load_text_front_end(None, declaration, None if lexicons is None else lexicons.lexicons_for)
    usual = {"run_ahead_s": math.inf, "max_body_bytes": MAX_BODY_BYTES, "max_message_bytes": MAX_MESSAGE_BYTES}

    @asynccontextmanager
    async def open_host() -> AsyncIterator[Host]:
        registry = VoiceRegistry(token2wav, voices, store=store, aliases=aliases)
        # Chunks of known sizes: a clock that stands still measures no speed to choose them by.
        held = settings or PipelineSettings(ExponentialChunks())
        warm_up = make_pipeline(warmed_by or FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices)
        with ThreadPoolExecutor(1) as executor:
            yield make_host(
                Speaker(llm, token2wav, registry, held, ManualClock(), front_end=front_end),
                registry,
                executor,
                readiness=Readiness(warm_up, llm, token2wav, "default", retry_s=0.01),
                clock=clock or SystemClock(),
                default_format=default_format,
                limits=HostLimits(**usual | limits),
                declaration=declaration,
                lexicons=lexicons,
            )

    async with served_door(build_app(open_host), llm, token2wav) as door:
        yield door
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(_SPEAKERS)]
    assert left == [], "who speaks ends with the connection"


@asynccontextmanager
async def served_door(app: ASGIApp, llm: FakeLLM, token2wav: FakeToken2Wav) -> AsyncIterator[Door]:
    """Serve an application on a free port; the services are those behind it."""
    config = uvicorn.Config(app, port=0, log_level="critical", ws_ping_interval=None, timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    # NOTE: what `serve` does, without its signal handlers and its tenths of seconds between two looks.
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False, verify=False) as http:
            yield Door(llm, token2wav, url, http, server)
    finally:
        await _shut_down(server)


async def _shut_down(server: uvicorn.Server) -> None:
    """Stop at once if all clients have left, otherwise as a server does that has some."""
    for _ in range(_MOMENTS):
        if not (server.server_state.connections or server.server_state.tasks):
            for each in server.servers:
                each.close()
            await server.lifespan.shutdown()
            return
        await asyncio.sleep(0.001)
    await server.shutdown()


def samples_of(messages: list[dict[str, Any]]) -> list[int]:
    """Join the audio of messages in 16-bit PCM."""
    audio = b"".join(base64.b64decode(message.get("audio") or "") for message in messages)
    return [int(sample) for sample in np.frombuffer(audio, "<i2")]


def alignments_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message["alignment"] for message in messages if message.get("alignment")]


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join("".join(alignment["chars"]) for alignment in alignments_of(messages))
