"""Serves the real Wyoming door on a free port, with both services faked; the client is the protocol's own package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.dialects.wyoming.settings import WyomingSettings
from gateway.doors.wyoming import serving_wyoming
from gateway.host import HostLimits
from gateway.speech.speaker import Speaker
from gateway.telemetry.telemetry import Telemetry
from gateway.text import TextFrontEnd
from gateway.voices.registry import NamedVoice, VoiceRegistry
from servicekit.clock import SystemClock
from servicekit.timeouts import timeout
from tests.gateway.fakes import UNPACED, Behind, FakeLLM, FakeToken2Wav, make_host

PATIENCE_S = 10.0
ANY_PORT = WyomingSettings(port=0)


@dataclass
class Door(Behind):
    """A running door and what stands behind it."""

    port: int

    def client(self) -> AsyncTcpClient:
        return AsyncTcpClient("127.0.0.1", self.port)


@asynccontextmanager
async def opened_wyoming(
    llm: FakeLLM,
    token2wav: FakeToken2Wav,
    voices: list[NamedVoice],
    settings: WyomingSettings = ANY_PORT,
    limits: HostLimits = UNPACED,
    access: Access | None = None,
    telemetry: Telemetry | None = None,
    front_end: TextFrontEnd | None = None,
) -> AsyncIterator[Door]:
    """Start the door and stop it again; nothing may be left running behind it."""
    registry = VoiceRegistry(token2wav, voices)
    access, telemetry = access or Access(None, CallerLimits(), SystemClock()), telemetry or Telemetry(SystemClock())
    parts = {"front_end": front_end, "access": access, "observer": telemetry.observer}
    pipeline = Speaker(llm, token2wav, registry, clock=SystemClock(), **parts)
    host = make_host(pipeline, registry, clock=SystemClock(), limits=limits)
    async with serving_wyoming(host, settings, access, telemetry) as port:
        assert port is not None
        yield Door(llm, token2wav, port)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("wyoming_")]
    assert (llm.running, token2wav.open_streams) == (0, 0)


@dataclass
class Heard:
    """What a client got, in order."""

    kinds: list[str] = field(default_factory=list)
    """Of events; chunks in a row are one."""
    pcm: bytes = b""
    events: list[Event] = field(default_factory=list)
    """But those of audio."""

    @property
    def error(self) -> Error:
        (found,) = [Error.from_event(event) for event in self.events if Error.is_type(event.type)]
        return found


async def listen(client: AsyncTcpClient, until: str | None = None) -> Heard:
    """Read up to the first event of a kind; None: up to the end of the connection."""
    heard = Heard()
    async with timeout(PATIENCE_S):
        while (event := await client.read_event()) is not None:
            if AudioChunk.is_type(event.type):
                heard.pcm += AudioChunk.from_event(event).audio
            else:
                heard.events.append(event)
            if heard.kinds[-1:] != [event.type]:
                heard.kinds.append(event.type)
            if event.type == until:
                break
    return heard


async def ask(client: AsyncTcpClient, *messages: Eventable) -> None:
    for message in messages:
        await client.write_event(message.event())
