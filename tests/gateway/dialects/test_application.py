"""The gateway's own application serves the sockets beside everything else."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect

from gateway.voices.registry import NamedVoice
from tests.gateway.dialects.socket_door import MULTI, ONE, SINGLE, STREAM
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

CONFIG: dict[str, object] = {"type": "session.config", "stream_audio": True}
SAID: dict[str, tuple[list[dict[str, object]], str]] = {
    MULTI: ([{"text": ONE, "context_id": "c", "flush": True}], "audio"),
    SINGLE: ([{"text": ONE, "flush": True}], "audio"),
    STREAM: ([CONFIG, {"type": "input.text", "text": ONE}, {"type": "input.done"}], "session_id"),
}


@pytest.mark.parametrize("path", SAID)
async def test_every_socket_is_served(voices: list[NamedVoice], path: str) -> None:
    messages, key = SAID[path]
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices) as door:
        async with connect(f"ws{door.url.removeprefix('http')}{path}", proxy=None) as client:
            for message in messages:
                await client.send(json.dumps(message))
            assert json.loads(await client.recv())[key]


async def test_elevenlabs_http_routes_are_served(voices: list[NamedVoice]) -> None:
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices) as door:
        response = await door.http.post("/v1/text-to-speech/anna?output_format=pcm_24000", json={"text": ONE})
        listed = (await door.http.get("/v1/voices")).json()["voices"]
    assert len(response.content) == 20 * 960 * 2
    assert [voice["voice_id"] for voice in listed] == ["anna", "default"]
