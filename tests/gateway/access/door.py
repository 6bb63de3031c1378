"""Serves every dialect on free ports behind one guard, with both services faked."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route

from gateway.access.access import Access
from gateway.access.caller import CallerLimits, current_caller
from gateway.access.connections import WireLimits
from gateway.access.http_middleware import guarded
from gateway.access.keys import ApiKey, parse_keys
from gateway.access.settings import AccessSettings, TlsFiles, http_rules, open_access, uvicorn_options
from gateway.dialects.wyoming.settings import WyomingSettings
from gateway.doors.grpc import GrpcSettings, serving_grpc
from gateway.doors.wyoming import serving_wyoming
from gateway.lexicons import LexiconBook
from gateway.lifecycle.readiness import Readiness
from gateway.processes.ports import open_port
from gateway.speech.speaker import Speaker
from gateway.telemetry.doors import TelemetryMiddleware
from gateway.telemetry.telemetry import Telemetry
from gateway.text import TextFrontEnd
from gateway.voices.directory import Viewer
from gateway.voices.registry import NamedVoice, VoiceAliases, VoiceRegistry
from tests.gateway.fakes import Behind, FakeLLM, ManualClock, app_of, make_host, speech_deltas
from tests.gateway.voices.fakes import FakeVoiceMaker, make_store

KEY = "sk-of-anna-0123456789"
OTHER_KEY = "sk-of-bob-0123456789"
BEARER = {"authorization": f"Bearer {KEY}"}
ELEVENLABS = {"xi-api-key": KEY}
SPEECH = {"model": "cosydit", "input": "hello", "voice": "default", "response_format": "pcm"}
TLS = TlsFiles(Path(__file__).with_name("localhost.pem"), Path(__file__).with_name("localhost.key"))
TOKENS = 25
"""The fake LLM's answer to anything: one second."""


def keys(limits: str = "") -> tuple[ApiKey, ...]:
    """Anna's key with limits, as they stand in a file, and Bob's without."""
    return tuple(parse_keys(f"anna {KEY} {limits}\nbob {OTHER_KEY}", CallerLimits(), "test"))


@dataclass
class Door(Behind):
    """Running doors and what stands behind them."""

    url: str
    grpc_address: str
    ports: dict[str, int]
    """Of the doors, by name."""
    http: httpx.AsyncClient
    channel: grpc.aio.Channel
    access: Access
    clock: ManualClock
    routes: list[BaseRoute]

    async def speak(self, headers: dict[str, str] | None = None, **changes: object) -> httpx.Response:
        return await self.http.post("/v1/audio/speech", json={**SPEECH, **changes}, headers=headers)

    async def until_idle(self) -> None:
        """Return when nothing is spoken and no caller holds a stream."""
        await super().until_idle()
        await self.until(lambda: not any(map(self.access.ledger.streams, ("anna", "bob", "127.0.0.1"))))


@asynccontextmanager
async def opened_door(
    voices: list[NamedVoice],
    settings: AccessSettings | None = None,
    llm: FakeLLM | None = None,
    telemetry: Telemetry | None = None,
    created_voices: Path | None = None,
    front_end: TextFrontEnd | None = None,
    lexicons: LexiconBook | None = None,
) -> AsyncIterator[Door]:
    """Start the doors and stop them again."""
    settings = settings or AccessSettings(fixed_keys=keys())
    llm, token2wav, clock = llm or FakeLLM(speech_deltas(TOKENS)), FakeVoiceMaker(), ManualClock()
    access = open_access(settings, clock)
    store = make_store(created_voices, token2wav) if created_voices is not None else None
    registry = VoiceRegistry(
        token2wav, voices, store=store, aliases=VoiceAliases(), viewer=lambda: Viewer(access.key_of_call())
    )
    telemetry = telemetry or Telemetry(clock)
    pipeline = Speaker(
        llm, token2wav, registry, None, clock, front_end=front_end, access=access, observer=telemetry.observer
    )
    readiness = Readiness(pipeline, llm, token2wav, "default")
    with ThreadPoolExecutor(2) as executor:
        host = make_host(pipeline, registry, executor, readiness=readiness, clock=clock, lexicons=lexicons)
        app = app_of(host, *_routes())
        async with (
            _serving_http(app, access, settings, telemetry) as port,
            serving_wyoming(host, WyomingSettings(port=0), access, telemetry) as wyoming_port,
            serving_grpc(host, GrpcSettings(port=0, tls=settings.tls), access, telemetry) as grpc_port,
            _channel(grpc_port, settings.tls) as channel,
            httpx.AsyncClient(base_url=_url(port, settings.tls), timeout=5, trust_env=False, verify=_trust()) as http,
        ):
            address = f"127.0.0.1:{grpc_port}"
            assert wyoming_port is not None
            url = str(http.base_url).rstrip("/")
            ports = {"HTTP": port, "gRPC": grpc_port, "Wyoming": wyoming_port}
            door = Door(llm, token2wav, url, address, ports, http, channel, access, clock, app.routes)
            yield door
            await door.until_idle()


@dataclass
class Wire:
    """The ASGI side of one connection: what it sends in, and what came back."""

    incoming: list[dict[str, Any]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)

    async def receive(self) -> dict[str, Any]:
        return self.incoming.pop(0) if self.incoming else {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status


@contextmanager
def recorded(logger_name: str = "") -> Iterator[list[str]]:
    """Collect everything that is logged."""
    handler, lines = logging.Handler(), list[str]()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _routes() -> list[BaseRoute]:
    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse(current_caller().name)

    return [
        Route("/", answer),
        Route("/docs", answer),
        Route("/openapi.json", answer),
        Route("/healthz", answer),
        Route("/web/app.js", answer),
        Route("/caller", answer),
    ]


@asynccontextmanager
async def _serving_http(
    app: Starlette, access: Access, settings: AccessSettings, telemetry: Telemetry | None
) -> AsyncIterator[int]:
    door = guarded(app, access, http_rules(settings, "127.0.0.1"))
    if telemetry is not None:
        door = TelemetryMiddleware(door, telemetry)
    config = uvicorn.Config(door, port=0, log_level="critical", **uvicorn_options(settings, access.connections))
    server = uvicorn.Server(config)
    bound = access.connections.listen(open_port("127.0.0.1", 0, "--port"), "HTTP")
    serving = asyncio.create_task(server.serve([*bound]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def _channel(port: int, tls: TlsFiles | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    credentials = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)


def _url(port: int, tls: TlsFiles | None) -> str:
    return f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"


def _trust() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(TLS.certificate))


SMALL = WireLimits(max_socket_message_bytes=2000, max_header_bytes=2000, max_connections=50)
