"""Serves the real gRPC door on a free port, with both services faked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from riva.proto import riva_tts_pb2_grpc
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.doors.grpc import GrpcSettings, serving_grpc
from gateway.host import HostLimits
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import Speaker
from gateway.telemetry.telemetry import Telemetry
from gateway.text import TextFrontEnd
from gateway.voices.registry import NamedVoice, VoiceRegistry
from servicekit.clock import Clock, SystemClock
from tests.gateway.fakes import UNPACED, Behind, FakeLLM, FakeToken2Wav, make_host

PATIENCE_S = 10.0
ANY_PORT = GrpcSettings(port=0)


@dataclass
class Door(Behind):
    """A running door, a channel to it and what stands behind it."""

    address: str
    channel: grpc.aio.Channel
    readiness: Readiness

    @property
    def tts(self) -> Any:
        return tts_service_pb2_grpc.TextToSpeechServiceStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def riva(self) -> Any:
        return riva_tts_pb2_grpc.RivaSpeechSynthesisStub(self.channel)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def opened_grpc(
    llm: FakeLLM,
    token2wav: FakeToken2Wav,
    voices: list[NamedVoice],
    settings: GrpcSettings = ANY_PORT,
    clock: Clock | None = None,
    limits: HostLimits = UNPACED,
    front_end: TextFrontEnd | None = None,
    access: Access | None = None,
) -> AsyncIterator[Door]:
    """Start the door and stop it again; nothing may be left running behind it."""
    clock = clock or SystemClock()
    access = access or Access(None, CallerLimits(), clock)
    registry = VoiceRegistry(token2wav, voices)
    pipeline = Speaker(llm, token2wav, registry, clock=clock, front_end=front_end)
    readiness = Readiness(pipeline, llm, token2wav, "default", retry_s=0.01)
    with ThreadPoolExecutor(1) as executor:
        host = make_host(pipeline, registry, executor, readiness=readiness, clock=clock, limits=limits)
        async with serving_grpc(host, settings, access, Telemetry(clock)) as port:
            address = f"127.0.0.1:{port}"
            async with grpc.aio.insecure_channel(address) as channel:
                door = Door(llm, token2wav, address, channel, readiness)
                yield door
                await door.until_idle()


@dataclass
class Heard:
    """The answers of one call of TextToSpeechService."""

    messages: list[Any] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [message.WhichOneof("event") for message in self.messages]

    @property
    def audio(self) -> list[speech_pb2.SpeechAudio]:
        return [message.audio for message in self.messages if message.HasField("audio")]

    @property
    def content(self) -> bytes:
        return b"".join(audio.content for audio in self.audio)

    @property
    def text(self) -> str:
        return "".join(timing.character for audio in self.audio for timing in audio.characters)

    @property
    def finished(self) -> speech_pb2.SpeechFinished:
        finished: speech_pb2.SpeechFinished = self.messages[-1].finished
        return finished


async def listen(call: Any) -> Heard:
    """Hear a call to its end."""
    heard = Heard()
    while (message := await asyncio.wait_for(call.read(), PATIENCE_S)) is not grpc.aio.EOF:
        heard.messages.append(message)
    return heard


def say(**request: Any) -> tts_service_pb2.StreamingSynthesizeRequest:
    """Make a message of a streaming call: config=, text=, flush=, cancel= or end_of_text=."""
    return tts_service_pb2.StreamingSynthesizeRequest(**request)


CONFIG = say(config=speech_pb2.SpeechConfig())
FLUSH = say(flush=tts_service_pb2.Flush())
CANCEL = say(cancel=tts_service_pb2.Cancel())
END = say(end_of_text=tts_service_pb2.EndOfText())


async def failure_of(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Return the code, details and trailing metadata of a call that fails."""
    try:
        await (listen(call) if hasattr(call, "read") else call)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", {str(k): str(v) for k, v in error.trailing_metadata()}
    raise AssertionError("the call did not fail")
