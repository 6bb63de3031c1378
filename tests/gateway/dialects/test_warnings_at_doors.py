"""What an answer warns of reaches the callers of every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import tts_service_pb2
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

from gateway.text import TextFrontEnd, load_text_front_end
from gateway.voices.registry import NamedVoice
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.dialects.socket_door import AUTO, STREAM, begin, end, opened_door
from tests.gateway.doors.grpc_door import listen, opened_grpc, say
from tests.gateway.doors.http_door import opened_door as opened_http_door
from tests.gateway.doors.wyoming_door import ask, opened_wyoming
from tests.gateway.doors.wyoming_door import listen as listen_to_events
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.speaking import events_of

Voices = list[NamedVoice]
CHINESE, ENGLISH = "今天天气很好。", "The weather is fine today."
WARNING = "the text is in zh, which the checkpoint does not declare; its speech may be gibberish"


def front_end() -> TextFrontEnd:
    return load_text_front_end(None, CheckpointDeclaration(languages=("en",), tags=()))


def fakes() -> tuple[FakeLLM, FakeToken2Wav]:
    return FakeLLM(speech_deltas(30)), FakeToken2Wav()


async def openai_events(voices: Voices, text: str) -> str | None:
    async with opened_http_door(*fakes(), voices, front_end=front_end()) as door:
        answer = await door.speak(input=text, stream_format="sse", response_format="pcm")
        return events_of(answer.content)[-1].get("warning")


async def elevenlabs_socket(voices: Voices, text: str) -> str | None:
    async with opened_door(*fakes(), voices, front_end=front_end()) as door, door.client(AUTO) as client:
        await begin(client, "c1", text)
        await end(client)
        return (await client.until_final("c1"))["c1"][-1].get("warning")


async def socket_of_sentences(voices: Voices, text: str) -> str | None:
    async with opened_door(*fakes(), voices, front_end=front_end()) as door, door.client(STREAM) as client:
        await client.send(type="session.config", stream_audio=True, response_format="pcm")
        await client.send(type="input.text", text=text)
        await client.send(type="input.done")
        while (message := await client.receive_any())["type"] != "session.done":
            pass
        return message.get("warning")


async def our_grpc(voices: Voices, text: str) -> str | None:
    async with opened_grpc(*fakes(), voices, front_end=front_end()) as door:
        calls = (
            door.tts.Synthesize(tts_service_pb2.SynthesizeRequest(text=text)),
            door.tts.StreamingSynthesize(iter([say(config={}), say(text=text), say(end_of_text={})])),
        )
        for call in calls:
            await listen(call)
        whole, streamed = [dict(await call.trailing_metadata()).get("x-language-warning") for call in calls]
        assert whole == streamed
        return streamed


async def riva(voices: Voices, text: str) -> str | None:
    fields: dict[str, Any] = {"encoding": "LINEAR_PCM", "sample_rate_hz": 24000, "language_code": "en-US"}
    request = riva_tts_pb2.SynthesizeSpeechRequest(text=text, **fields)
    async with opened_grpc(*fakes(), voices, front_end=front_end()) as door:
        whole, streamed = door.riva.Synthesize(request), door.riva.SynthesizeOnline(iter([request]))
        await whole
        await listen(streamed)
        told = [dict(await call.trailing_metadata()).get("x-language-warning") for call in (whole, streamed)]
        assert told[0] == told[1]
        return told[0]


async def wyoming(voices: Voices, text: str) -> str | None:
    async with opened_wyoming(*fakes(), voices, front_end=front_end()) as door, door.client() as client:
        await ask(client, Synthesize(text))
        whole = (await listen_to_events(client, "audio-stop")).events[-1].data
        await ask(client, SynthesizeStart(), SynthesizeChunk(text), SynthesizeStop())
        assert (await listen_to_events(client, "audio-stop")).events[-1].data == whole
        return whole.get("warning")


DOORS = [openai_events, elevenlabs_socket, socket_of_sentences, our_grpc, riva, wyoming]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_every_door_warns_of_a_language_and_of_nothing_else(voices: Voices, door: Callable[..., Any]) -> None:
    assert await door(voices, CHINESE) == WARNING
    assert await door(voices, ENGLISH) is None
