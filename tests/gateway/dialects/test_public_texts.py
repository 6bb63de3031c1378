"""What callers are told of the services behind the gateway: what to do, and no addresses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
import websockets
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc

from gateway import errors
from gateway.access.settings import AccessSettings
from gateway.routing.replica import Replica, RoutingSettings
from gateway.voices.registry import NamedVoice
from tests.gateway.access.door import opened_door
from tests.gateway.doors.grpc_door import failure_of
from tests.gateway.fakes import FakeLLM, ManualClock

ADDRESS = "http://10.0.0.7:8000"
SECRET = f"LLM at {ADDRESS} can't be reached (ClientConnectorError: token2wav at 10.0.0.8:8001)"
TOLD_WHOLE = (errors.EmptySpeechError,)


def below(base: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield base
    for each in base.__subclasses__():
        yield from below(each)


@pytest.mark.parametrize("kind", [*below(errors.LLMError), *below(errors.Token2WavError)])
def test_no_error_of_a_service_tells_more_than_what_to_do(kind: type[errors.GatewayError]) -> None:
    if kind not in TOLD_WHOLE:
        assert "10.0.0" not in errors.public_text(kind(SECRET))


def test_what_callers_did_wrong_is_told_in_full() -> None:
    assert errors.public_text(errors.InvalidTextError("the text is empty")) == "the text is empty"
    assert errors.public_text(errors.OverloadedError("all full", retry_after_s=1.0)) == "all full"


def test_what_nobody_foresaw_tells_nothing() -> None:
    assert errors.public_text(ValueError(SECRET)) == errors.public_text(errors.GatewayError(SECRET))
    assert "10.0.0" not in errors.public_text(ValueError(SECRET))


async def test_no_door_tells_an_address(voices: list[NamedVoice], caplog: pytest.LogCaptureFixture) -> None:
    llm = FakeLLM([], error=errors.LLMUnavailableError(SECRET))
    async with opened_door(voices, AccessSettings(is_insecure=True), llm) as door:
        told = [(await door.speak()).text]
        told.append((await door.http.post("/v1/text-to-speech/default", json={"text": "hello"})).text)
        riva = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(door.channel)
        request = riva_tts_pb2.SynthesizeSpeechRequest(text="hello", sample_rate_hz=24000, encoding=1)
        told.append(str(await failure_of(riva.Synthesize(request))))
        url = door.url.replace("http", "ws") + "/v1/text-to-speech/default/stream-input"
        async with websockets.connect(url, proxy=None) as socket:
            for text in ("hello there. ", ""):
                await socket.send(json.dumps({"text": text}))
            with contextlib.suppress(websockets.ConnectionClosedError):
                while True:
                    told.append(str(await socket.recv()))
    assert sum("no speech LLM can be had now" in each for each in told) >= 4
    assert [each for each in told if "10.0.0" in each] == []
    assert ADDRESS in caplog.text


def test_the_reason_of_a_failure_does_not_grow_with_those_before_it() -> None:
    health = Replica("llm", "a", RoutingSettings(), ManualClock())
    for _ in range(50):
        health.failed(f"it was ejected ({health.last_failure}); see its log")
    assert len(health.last_failure) <= 300
