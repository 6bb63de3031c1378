"""Puts the gateway's parts together: clients, pipeline, readiness and the HTTP application.

`Gateway` is what any door needs; `build_app` is the HTTP door around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from starlette.routing import Route

from cosydit.clock import Clock, SystemClock
from gateway.config import GatewayConfig
from gateway.dialects import voices_http
from gateway.dialects.openai_http import SpeechEndpoint, error_response
from gateway.errors import ConfigError, NotReadyError
from gateway.llm_client import SpeechLMClient
from gateway.llm_wire import LLMWire
from gateway.pipeline import PipelineSettings, SpeechPipeline
from gateway.readiness import Readiness
from gateway.text import load_text_front_end
from gateway.token2wav_client import Token2WavClient
from gateway.voice_settings import open_registry
from gateway.voices import VoiceRegistry
from llm_service.prompt import LengthLimits, load_text_encoder


@dataclass(frozen=True)
class Gateway:
    """The parts that doors share."""

    pipeline: SpeechPipeline
    readiness: Readiness
    voices: VoiceRegistry


GatewayFactory = Callable[[], AbstractAsyncContextManager[Gateway]]


@asynccontextmanager
async def open_gateway(config: GatewayConfig, clock: Clock | None = None) -> AsyncIterator[Gateway]:
    """Make clients and pipeline inside the running event loop, and close them on leaving.

    Raises:
        ConfigError: a directory or value that can't work.
    """
    clock = clock or SystemClock()
    wire = LLMWire(
        load_text_encoder(config.tokenizer_dir),
        config.llm_backend,
        config.llm_prompt_form,
        LengthLimits(max_speech_tokens=config.llm_max_speech_tokens),
    )
    llm = SpeechLMClient(config.llm_url, wire, config.llm_model, config.llm_deadlines, clock)
    token2wav = Token2WavClient(config.token2wav_url, config.token2wav_deadlines)
    voices = open_registry(config.voices_dir, config.voices, token2wav, clock)
    if config.warm_up_voice not in voices.names:
        raise ConfigError(f"warm-up voice {config.warm_up_voice!r} is not one of {voices.names} in {config.voices_dir}")
    settings = PipelineSettings(config.chunks.policy(), config.max_text_characters)
    pipeline = SpeechPipeline(llm, token2wav, voices, settings, clock, load_text_front_end())
    try:
        yield Gateway(pipeline, Readiness(pipeline, llm, token2wav, config.warm_up_voice), voices)
    finally:
        await llm.close()
        await token2wav.close()


def build_app(open_parts: GatewayFactory, max_body_bytes: int) -> FastAPI:
    """Make the HTTP application; its parts live as long as it runs.

    Args:
        open_parts: makes the gateway when the application starts, e.g. `open_gateway` with its config bound.
        max_body_bytes: largest request body accepted.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_parts() as gateway:
            app.state.gateway = gateway
            warm_up = asyncio.create_task(gateway.readiness.warm_up())
            try:
                yield
            finally:
                warm_up.cancel()
                await asyncio.gather(warm_up, return_exceptions=True)

    app = FastAPI(title="cosydit gateway", lifespan=lifespan)

    def gateway() -> Gateway:
        parts: Gateway = app.state.gateway
        return parts

    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    async def readyz() -> Response:
        try:
            await gateway().readiness.check()
        except NotReadyError as error:
            return error_response(error)
        return PlainTextResponse("ready\n")

    app.add_api_route("/healthz", healthz, methods=["GET"])
    app.add_api_route("/readyz", readyz, methods=["GET"])
    app.router.routes.extend(voices_http.routes(lambda: gateway().voices))
    speech = SpeechEndpoint(lambda: gateway().pipeline, max_body_bytes)
    app.router.routes.append(Route("/v1/audio/speech", speech, methods=["POST"]))
    return app
