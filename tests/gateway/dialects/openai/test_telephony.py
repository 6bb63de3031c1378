"""The program of docs/telephony.md between a gateway and a stand-in for a provider of telephony."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from websockets.asyncio.client import ClientConnection, connect

from gateway.audio.codecs import mulaw_levels
from gateway.voices.registry import NamedVoice
from tests.docs.pages import DOCS, fences
from tests.gateway.audio.signals import best_lag
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, speech_deltas
from tests.gateway.speaking import SPEECH_TOKENS, SpeakingToken2Wav, spoken_sound

Voices = list[NamedVoice]
FRAME_BYTES, RATE_HZ = 160, 8000
SID = "MZ18ad3ab5a668481ce02b83e7395059f0"
PATIENCE_S = 10


def program() -> str:
    (text,) = [fence.text for fence in fences(DOCS / "telephony.md") if fence.language == "python"]
    return text


@dataclass
class Provider:
    """Plays the provider: starts a call, keeps what it is sent, answers marks once it has `played` what came before."""

    connection: ClientConnection
    frames: list[bytes] = field(default_factory=list)
    cleared: int = 0
    marks: list[str] = field(default_factory=list)

    async def send(self, event: str, **content: Any) -> None:
        await self.connection.send(json.dumps({"event": event, "streamSid": SID, **content}))

    async def start(self) -> None:
        await self.connection.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        form = {"encoding": "audio/x-mulaw", "sampleRate": RATE_HZ, "channels": 1}
        await self.send("start", start={"streamSid": SID, "callSid": "CA1", "tracks": ["inbound"], "mediaFormat": form})
        await self.send("media", media={"track": "inbound", "payload": base64.b64encode(b"\xff" * 160).decode()})

    async def hear(self) -> str:
        """Take one message; return its kind."""
        message = json.loads(await asyncio.wait_for(self.connection.recv(), PATIENCE_S))
        assert message["streamSid"] == SID
        match message["event"]:
            case "media":
                self.frames.append(base64.b64decode(message["media"]["payload"], validate=True))
            case "clear":
                self.cleared += 1
                self.frames.clear()
            case "mark":
                self.marks.append(message["mark"]["name"])
                await self.send("mark", mark=message["mark"])
        return str(message["event"])

    async def hear_until(self, kind: str) -> None:
        while await self.hear() != kind:
            pass

    @property
    def sound(self) -> np.ndarray:  # type: ignore[type-arg]
        levels = mulaw_levels().astype(np.float32) / 32767
        return levels[np.frombuffer(b"".join(self.frames), np.uint8)]


@asynccontextmanager
async def called(door: Door, folder: Path) -> AsyncIterator[tuple[Provider, asyncio.subprocess.Process]]:
    """Start the program and call it."""
    (folder / "call.py").write_text(program(), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "COSYDIT_URL": door.url, "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(folder / "call.py"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert b"waiting for calls" in await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        # Without a bound, what a test does not hear does not keep the answer to its close from it.
        async with connect(f"ws://127.0.0.1:{port}", proxy=None, max_queue=None) as connection:
            yield Provider(connection), process
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_call_hears_whole_frames_of_the_speech_and_then_a_mark(voices: Voices, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(SPEECH_TOKENS))
    async with opened_door(llm, SpeakingToken2Wav(), voices) as door:
        async with called(door, tmp_path) as (provider, process):
            await provider.start()
            await provider.hear_until("mark")
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"played: greeting\n"
    assert (provider.marks, provider.cleared) == (["greeting"], 0)
    assert {len(frame) for frame in provider.frames} == {FRAME_BYTES}
    assert len(provider.frames) == pytest.approx(len(spoken_sound()) / 24_000 / 0.02, abs=1)
    wanted = soxr.resample(spoken_sound(), 24_000, RATE_HZ)
    assert best_lag(provider.sound, wanted[:RATE_HZ], 200)[1] > 0.98
    assert llm.utterances[-1].text.startswith("Thank you for calling.")


@pytest.mark.slow
async def test_a_key_stops_the_speech_everywhere_and_the_next_text_is_spoken(voices: Voices, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(SPEECH_TOKENS), gate=asyncio.Event(), ungated=30)
    async with opened_door(llm, SpeakingToken2Wav(), voices) as door:
        async with called(door, tmp_path) as (provider, _):
            await provider.start()
            await provider.hear_until("media")
            assert llm.running == 1
            await provider.send("dtmf", dtmf={"track": "inbound_track", "digit": "7"})
            await provider.hear_until("clear")
            llm.gate.set()
            await provider.hear_until("mark")
            await provider.send("stop", stop={"callSid": "CA1"})
            await door.until_idle()
    assert (provider.marks, provider.cleared) == (["digit"], 1)
    assert "You pressed" in llm.utterances[-1].text
    assert len(provider.sound) / RATE_HZ == pytest.approx(len(spoken_sound()) / 24_000, abs=0.05)


@pytest.mark.slow
async def test_a_caller_who_hangs_up_frees_the_stream(voices: Voices, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(SPEECH_TOKENS), gate=asyncio.Event(), ungated=30)
    async with opened_door(llm, SpeakingToken2Wav(), voices) as door:
        async with called(door, tmp_path) as (provider, _):
            await provider.start()
            await provider.hear_until("media")
            await provider.connection.close()
            await door.until_idle()
