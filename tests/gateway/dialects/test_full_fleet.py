"""A full fleet says on every wire that it is full and when to come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.dialects.elevenlabs import wire as elevenlabs
from gateway.dialects.speech_ws import wire as speech_ws
from gateway.errors import InvalidTextError, OverloadedError
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.grpc_door import failure_of, opened_grpc
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

SAYING = {"model": "m", "input": "Hello.", "voice": "default"}


@pytest.fixture
def voices(tmp_path: Path) -> list[NamedVoice]:
    (tmp_path / "default.wav").write_bytes(b"RIFF")
    return [NamedVoice("default", tmp_path / "default.wav", "I am default.")]


def _full() -> FakeToken2Wav:
    return FakeToken2Wav(open_failure=OverloadedError("all replicas are full", retry_after_s=6.3))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/audio/speech", SAYING, id="OpenAI"),
        pytest.param("/v1/audio/speech", {**SAYING, "stream_format": "sse"}, id="OpenAI, events"),
        pytest.param("/v1/text-to-speech/default", {"text": "Hello."}, id="ElevenLabs"),
        pytest.param("/v1/text-to-speech/default/stream", {"text": "Hello."}, id="ElevenLabs, streamed"),
        pytest.param("/v1/text-to-speech/default/stream/with-timestamps", {"text": "Hello."}, id="ElevenLabs, timed"),
    ],
)
async def test_http(voices: list[NamedVoice], path: str, body: dict[str, Any]) -> None:
    llm = FakeLLM(speech_deltas(5))
    async with opened_door(llm, _full(), voices) as door:
        answer = await door.http.post(path, json=body)
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-should-retry"]) == (429, "7", "true")
    assert "overloaded" in answer.text and "all replicas are full" in answer.text
    assert llm.running == 0


OURS = tts_service_pb2.SynthesizeRequest(text="Hello.", config=speech_pb2.SpeechConfig())
RIVA = riva_tts_pb2.SynthesizeSpeechRequest(text="Hello.", language_code="en-US", sample_rate_hz=24000)


@pytest.mark.parametrize("method", ["Synthesize", "Synthesize of Riva", "SynthesizeOnline of Riva"])
async def test_grpc(voices: list[NamedVoice], method: str) -> None:
    name, _, is_riva = method.partition(" ")
    async with opened_grpc(FakeLLM(speech_deltas(5)), _full(), voices) as door:
        riva = iter([RIVA]) if name == "SynthesizeOnline" else RIVA
        call = getattr(door.riva, name)(riva) if is_riva else getattr(door.tts, name)(OURS)
        code, details, metadata = await failure_of(call)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "all replicas are full" in details
    assert (metadata["retry-after"], metadata["grpc-retry-pushback-ms"]) == ("7", "6300")


def test_web_sockets_tell_when_to_try_again() -> None:
    error = OverloadedError("full", retry_after_s=3.5)
    assert speech_ws.error_message(error)["retry_after_s"] == 3.5
    assert elevenlabs.error_message(error, "one")["retryAfterS"] == 3.5
    assert "retry_after_s" not in speech_ws.error_message(InvalidTextError("empty"))
