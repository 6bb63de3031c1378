"""Puts the gateway's parts together: clients, pipeline, readiness and the HTTP application.

`Gateway` is what any door needs; `build_app` is the HTTP door around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry

from gateway.access.access import Access
from gateway.access.caller import caller_of
from gateway.access.metered_pipeline import MeteredPipeline
from gateway.access.settings import open_access
from gateway.audio import load_codecs
from gateway.config import GatewayConfig
from gateway.delivery.pacer import DEFAULT_RUN_AHEAD_S
from gateway.dialects.common.sending import DEFAULT_READER_TIMEOUT_S
from gateway.dialects.common.socket_host import SocketHost
from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.elevenlabs import ws as elevenlabs_ws
from gateway.dialects.http import voices_http, web_page
from gateway.dialects.openai import http as openai_http
from gateway.dialects.openai import models as openai_models
from gateway.dialects.openai.errors import error_response, shape_other_errors
from gateway.dialects.openai.request import default_format
from gateway.dialects.openai.speech import OpenAIHost
from gateway.dialects.speech_ws import socket as speech_ws
from gateway.doors.grpc import GrpcParts, GrpcSettings, serving_grpc
from gateway.errors import ConfigError, NotReadyError
from gateway.lifecycle.gate import Gate
from gateway.lifecycle.readiness import Readiness
from gateway.lifecycle.replicas import Routes
from gateway.lifecycle.shutdown import Shutdown
from gateway.llm.client import SpeechLMClient
from gateway.llm.routed import RoutedSpeechLM
from gateway.llm.wire import LLMWire
from gateway.routing.fleet import Fleet
from gateway.routing.options import llm_sources, token2wav_sources
from gateway.routing.waiting import LLM, TOKEN2WAV
from gateway.speech.pipeline import PipelineSettings, SpeechPipeline
from gateway.telemetry import exposition
from gateway.telemetry.heartbeat import beating
from gateway.telemetry.replicas import watch_replicas
from gateway.telemetry.telemetry import Telemetry
from gateway.text import load_text_front_end
from gateway.text.carry import CarryLimits
from gateway.token2wav.client import Token2WavClient
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.registry import VoiceRegistry
from gateway.voices.settings import open_registry
from llm_service.prompt import LengthLimits, load_text_encoder
from llm_service.speech_bounds import SpeechBounds, load_speech_bounds
from servicekit.clock import Clock, SystemClock


@dataclass(frozen=True)
class Gateway:
    """The parts that doors share."""

    pipeline: SpeechPipeline
    readiness: Readiness
    voices: VoiceRegistry
    executor: Executor
    """Threads for codecs that take time."""
    openai: OpenAIHost
    run_ahead_s: float = DEFAULT_RUN_AHEAD_S
    """Of the sockets, see `Pacer`."""
    reader_timeout_s: float = DEFAULT_READER_TIMEOUT_S
    """Of HTTP, see `gateway.dialects.common.sending.sent`."""
    routes: Routes | None = None
    """The replicas behind the pipeline; None for one that knows none."""
    shutdown: Shutdown | None = None
    """Lets streams end; None for a gateway that just stops."""


GatewayFactory = Callable[[], AbstractAsyncContextManager[Gateway]]


@asynccontextmanager
async def open_gateway(
    config: GatewayConfig,
    clock: Clock | None = None,
    access: Access | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Gateway]:
    """Make clients and pipeline inside the running event loop, and close them on leaving.

    Args:
        config: of everything.
        clock: the system's by default.
        access: holds callers to their limits, the one that guards the doors; by default one of its own.
        telemetry: is told of every stream.

    Raises:
        ConfigError: a directory or value that can't work.
    """
    clock = clock or SystemClock()
    encoder = load_text_encoder(config.tokenizer_dir)
    wire = LLMWire(
        encoder,
        config.llm_backend,
        config.llm_prompt_form,
        LengthLimits(max_speech_tokens=config.llm_max_speech_tokens),
    )
    routes = _routes(config, wire, clock)
    llm, token2wav = routes.llm, routes.token2wav
    voices = open_registry(config.voices_dir, config.voices, token2wav, clock)
    if config.warm_up_voice not in voices.names:
        raise ConfigError(f"warm-up voice {config.warm_up_voice!r} is not one of {voices.names} in {config.voices_dir}")
    asked = SpeechBounds(config.segment_letters, config.carry_tokens)
    bounds = load_speech_bounds(config.tokenizer_dir).overridden_by(asked)
    settings = PipelineSettings(config.chunks.policy(), config.max_text_characters, CarryLimits.within(bounds))
    access = access or open_access(config.access, clock)
    gate = Gate(llm, token2wav)
    observer = None
    if telemetry is not None:
        observer = telemetry.observer
        watch_replicas(telemetry.metrics.registry, llm.snapshot, token2wav.snapshot)
    pipeline = MeteredPipeline(
        access, llm, token2wav, voices, settings, clock, load_text_front_end(bounds.segment_letters), gate, observer
    )
    readiness = Readiness(pipeline, llm, token2wav, config.warm_up_voice)
    shutdown = Shutdown(gate, readiness, config.drain_delay_s, config.drain_timeout_s)
    try:
        routes.start()
        with ThreadPoolExecutor(thread_name_prefix="codec") as executor:
            patience_s = config.reader_timeout_s
            openai = OpenAIHost(pipeline, executor, encoder.encode, default_format(load_codecs()), patience_s)
            shared = (pipeline, readiness, voices, executor, openai)
            yield Gateway(*shared, config.run_ahead_s, patience_s, routes, shutdown)
    finally:
        await routes.close()


@asynccontextmanager
async def open_with_grpc(
    config: GatewayConfig, access: Access, telemetry: Telemetry | None = None
) -> AsyncIterator[Gateway]:
    """Make the gateway and open its gRPC door and its port of metrics, if it is to have them.

    Args:
        config: of everything.
        access: guards both doors.
        telemetry: see `open_gateway`.

    Raises:
        ConfigError: a directory, port or value that can't work.
    """
    clock = SystemClock()
    async with open_gateway(config, clock, access, telemetry) as gateway, AsyncExitStack() as doors:
        if telemetry is not None and config.telemetry.metrics_port is not None:
            registry, port = telemetry.metrics.registry, config.telemetry.metrics_port
            heartbeat = await doors.enter_async_context(beating(clock))
            doors.enter_context(exposition.metrics_port(registry, heartbeat, config.host, port))
        if config.grpc_port is not None:
            shared = (gateway.pipeline, gateway.voices, gateway.readiness, clock, gateway.executor)
            parts = GrpcParts(*shared, access, telemetry)
            await doors.enter_async_context(serving_grpc(parts, _grpc_settings(config, config.grpc_port)))
        yield gateway


def build_app(
    open_parts: GatewayFactory,
    max_body_bytes: int,
    metrics: CollectorRegistry | None = None,
    on_warm: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Make the HTTP application; its parts live as long as it runs.

    Args:
        open_parts: makes the gateway when the application starts, e.g. `open_gateway` with its config bound.
        max_body_bytes: largest request body accepted.
        metrics: what GET /metrics tells; None: there is no such path.
        on_warm: called once, after the first synthesis that worked.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_parts() as gateway:
            app.state.gateway = gateway
            warm_up = asyncio.create_task(gateway.readiness.warm_up(on_warm))
            try:
                yield
            finally:
                warm_up.cancel()
                await asyncio.gather(warm_up, return_exceptions=True)

    app = FastAPI(title="cosydit gateway", lifespan=lifespan)
    shape_other_errors(app)

    def gateway() -> Gateway:
        parts: Gateway = app.state.gateway
        return parts

    def sockets() -> SocketHost:
        parts = gateway()
        shared = (parts.pipeline, parts.voices, SystemClock(), parts.executor)
        return SocketHost(*shared, parts.run_ahead_s, reader_timeout_s=parts.reader_timeout_s)

    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    async def readyz() -> Response:
        try:
            await gateway().readiness.check()
        except NotReadyError as error:
            return error_response(error)
        return PlainTextResponse("ready\n")

    app.add_api_route("/healthz", healthz, methods=["GET"])
    # The name that clients of other speech servers ask before they send a load; it means that speech can be made.
    app.add_api_route("/health", readyz, methods=["GET"])
    app.add_api_route("/readyz", readyz, methods=["GET"])
    app.router.routes.extend(exposition.routes(metrics) if metrics is not None else [])
    app.router.routes.extend(voices_http.routes(lambda: gateway().voices, caller_of))
    app.router.routes.extend(openai_http.routes(lambda: gateway().openai, max_body_bytes))
    app.router.routes.extend(openai_models.routes())
    app.router.routes.extend(elevenlabs_ws.routes(sockets))
    app.router.routes.extend(elevenlabs_http.routes(sockets, max_body_bytes))
    app.router.routes.extend(speech_ws.routes(sockets))
    app.router.routes.extend(web_page.routes(lambda: gateway().voices))
    return app


def _routes(config: GatewayConfig, wire: LLMWire, clock: Clock) -> Routes:
    def llm_client(address: str) -> SpeechLMClient:
        return SpeechLMClient(address, wire, config.llm_model, config.llm_deadlines, clock)

    def token2wav_client(address: str) -> Token2WavClient:
        return Token2WavClient(address, config.token2wav_deadlines)

    settings = config.routing
    llm_found = llm_sources(config.llm_url, settings)
    token2wav_found = token2wav_sources(config.token2wav_url, settings)
    return Routes(
        RoutedSpeechLM(Fleet(LLM, settings, clock), llm_found, llm_client, clock),
        RoutedToken2Wav(Fleet(TOKEN2WAV, settings, clock), token2wav_found, token2wav_client, clock),
    )


def _grpc_settings(config: GatewayConfig, port: int) -> GrpcSettings:
    wire = config.access.wire
    return GrpcSettings(
        host=config.host,
        port=port,
        run_ahead_s=config.run_ahead_s,
        reader_timeout_s=config.reader_timeout_s,
        max_message_bytes=wire.max_grpc_message_bytes,
        tls=config.access.tls,
        max_calls=wire.max_connections,
    )
