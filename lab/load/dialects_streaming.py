"""The dialects of gRPC and of WebSockets, each asked by a client for one short text; see `dialects`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc
from websockets.asyncio.client import connect

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.dialects.elevenlabs import ws as elevenlabs_ws
from gateway.dialects.speech_ws import socket as speech_ws
from gateway.doors.grpc import GrpcSettings, serving_grpc
from gateway.host import Host
from gateway.telemetry.telemetry import Telemetry
from lab.load.dialects import TEXT, VOICE, Dialect, Request, serving

CONTEXT = "one"
MULTI_STREAM = f"/v1/text-to-speech/{VOICE}/multi-stream-input?output_format=pcm_24000&auto_mode=true"
SPEECH_STREAM = "/v1/audio/speech/stream"

Call = Callable[[grpc.aio.Channel], Any]
"""Starts a call of one text; its answers are read to their end."""
# The stubs have no types.
_tts_stub: Call = tts_service_pb2_grpc.TextToSpeechServiceStub
_riva_stub: Call = riva_tts_pb2_grpc.RivaSpeechSynthesisStub


@asynccontextmanager
async def _serve_grpc(call: Call, host: Host) -> AsyncIterator[Request]:
    async with (
        serving_grpc(
            host, GrpcSettings(port=0), Access(None, CallerLimits(), host.clock), Telemetry(host.clock)
        ) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):

        async def ask() -> float:
            began_s, first_s = host.clock.now(), None
            async for answer in call(channel):
                if first_s is None and _audio_of(answer):
                    first_s = host.clock.now() - began_s
            assert first_s is not None
            return first_s

        yield ask


def _audio_of(answer: Any) -> bytes:
    """Return the audio of an answer of either service."""
    content: bytes = answer.audio if isinstance(answer, riva_tts_pb2.SynthesizeSpeechResponse) else answer.audio.content
    return content


def _own(channel: grpc.aio.Channel) -> Any:
    config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(name=VOICE))
    request = tts_service_pb2.SynthesizeRequest(text=TEXT, config=config)
    return _tts_stub(channel).Synthesize(request)


def _riva(channel: grpc.aio.Channel) -> Any:
    request = riva_tts_pb2.SynthesizeSpeechRequest(text=TEXT, voice_name=VOICE, sample_rate_hz=24_000)
    return _riva_stub(channel).SynthesizeOnline(iter([request]))


@asynccontextmanager
async def _serve_socket(
    routes: Sequence[BaseRoute],
    path: str,
    messages: Sequence[Mapping[str, Any]],
    is_last: Callable[[Any], bool],
    host: Host,
) -> AsyncIterator[Request]:
    """Serve a socket; each request is a connection of its own, timed from its first message."""
    app = Starlette(routes=routes)
    app.state.host = host
    async with serving(app) as url:

        async def ask() -> float:
            async with connect(f"ws{url.removeprefix('http')}{path}", proxy=None) as socket:
                began_s, first_s = host.clock.now(), None
                for message in messages:
                    await socket.send(json.dumps(message))
                async for raw in socket:
                    answer = None if isinstance(raw, bytes) else json.loads(raw)
                    if first_s is None and (answer is None or answer.get("audio")):
                        first_s = host.clock.now() - began_s
                    if answer is not None and is_last(answer):
                        break
            assert first_s is not None
            return first_s

        yield ask


_ELEVENLABS = (
    {"text": " ", "context_id": CONTEXT},
    {"text": TEXT, "context_id": CONTEXT, "flush": True},
    {"text": "", "context_id": CONTEXT, "flush": True},
    {"context_id": CONTEXT, "close_context": True},
)
_SPEECH_STREAM = (
    {"type": "session.config", "voice": VOICE, "response_format": "pcm", "stream_audio": True},
    {"type": "input.text", "text": TEXT},
    {"type": "input.done"},
)

STREAMING_DIALECTS = (
    Dialect("gRPC, Synthesize", partial(_serve_grpc, _own)),
    Dialect("Riva, SynthesizeOnline", partial(_serve_grpc, _riva)),
    Dialect(
        "ElevenLabs, multi-stream-input, pcm",
        partial(
            _serve_socket, elevenlabs_ws.ROUTES, MULTI_STREAM, _ELEVENLABS, lambda answer: bool(answer.get("isFinal"))
        ),
    ),
    Dialect(
        "WebSocket, /v1/audio/speech/stream, pcm",
        partial(
            _serve_socket,
            speech_ws.ROUTES,
            SPEECH_STREAM,
            _SPEECH_STREAM,
            lambda answer: answer.get("type") == "session.done",
        ),
    ),
)
