"""Errors come in the shape of the door that was called, also where no route answers."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.voices.registry import NamedVoice
from tests.gateway.doors.grpc_door import opened_grpc
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
OPENAI = ("/v1/", "/v1/audio/nothing", "/v1/audio/voices/a/b", "/v2/audio", "/v1/voicesnot", "/nowhere")
ELEVENLABS = (
    "/v1/text-to-speech",
    "/v1/text-to-speech/a/nothing",
    "/v1/voices/a/b",
    "/v2/voices/a",
    "/v1/user/nothing",
)


def code_of(path: str, body: dict[str, Any]) -> str:
    """Return the code of an error, whose shape must be that of the door below whose prefix `path` is."""
    if path in OPENAI or path.startswith(("/v1/audio", "/v1/models")):
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
        assert path in body["error"]["message"]
        return str(body["error"]["code"])
    assert set(body) == {"detail"} and set(body["detail"]) == {"status", "message"}, body
    assert path in body["detail"]["message"]
    return str(body["detail"]["status"])


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_an_unknown_address_is_refused_in_the_shape_of_its_door(voices: Voices, method: str) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        for path in (*OPENAI, *ELEVENLABS):
            answer = await door.http.request(method, path)
            assert (answer.status_code, code_of(path, answer.json())) == (404, "not_found"), path


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        pytest.param("GET", "/v1/audio/speech", "POST", id="OpenAI"),
        pytest.param("OPTIONS", "/v1/models", "GET, HEAD", id="options"),
        pytest.param("PUT", "/v1/audio/voices", "GET, HEAD, POST", id="voices"),
        pytest.param("PATCH", "/v1/audio/voices/a", "DELETE, GET, HEAD", id="a voice"),
        pytest.param("GET", "/v1/text-to-speech/a", "POST", id="ElevenLabs"),
        pytest.param("DELETE", "/v1/voices/a", "GET, HEAD", id="an ElevenLabs voice"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(voices: Voices, method: str, path: str, allowed: str) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        answer = await door.http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert code_of(path, answer.json()) == "method_not_allowed"
    assert allowed in answer.text


@pytest.mark.parametrize("path", ["/v1/audio/speech/nothing", "/v1/text-to-speech/a/nothing"])
async def test_an_unknown_socket_is_refused_at_the_handshake(voices: Voices, path: str) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws{door.url.removeprefix('http')}{path}", proxy=None)
    assert refused.value.response.status_code == 404
    assert (b'"detail"' if "text-to-speech" in path else b'"error"') in (refused.value.response.body or b"")


@pytest.mark.parametrize(
    "method",
    [
        "/tts_api.tts.v1.TextToSpeechService/Nothing",
        "/nvidia.riva.tts.RivaSpeechSynthesis/Nothing",
        "/no.such.Service/Call",
    ],
)
async def test_an_unknown_call_is_a_status_of_grpc(voices: Voices, method: str) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await door.channel.unary_unary(method)(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
