"""`stream_format: sse` of POST /v1/audio/speech."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.errors import LLMInterruptedError
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.speaking import audio_of, events_of

Voices = list[NamedVoice]

LINE_LIMIT_BYTES = 64 * 1024


async def speak_events(door: Door, **changes: object) -> httpx.Response:
    return await door.speak(stream_format="sse", response_format="pcm", **changes)


async def test_deltas_carry_the_audio_and_the_last_event_the_account(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(60)), FakeToken2Wav(), voices) as door:
        response = await speak_events(door, input="One two. Three!")
    *deltas, done = events_of(response.content)

    assert np.frombuffer(audio_of(deltas), "<i2").tolist() == [16383] * 60 * 960
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 15, "output_tokens": 60, "total_tokens": 75},
        "spoken_text": "One two. Three!",
    }


async def test_the_account_covers_every_segment_of_a_long_text(voices: Voices) -> None:
    text = "This sentence is one of very many. " * 40
    llm = FakeLLM(speech_deltas(10))
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        response = await speak_events(door, input=text)
    segments = llm.utterances
    done = events_of(response.content)[-1]

    assert len(segments) > 1
    assert done["usage"]["input_tokens"] == sum(len(segment.text) for segment in segments)
    assert done["usage"]["output_tokens"] == 10 * len(segments)
    assert done["spoken_text"].strip() == "".join(segment.text for segment in segments).strip()


async def test_words_come_behind_the_audio_that_they_end_in(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(60, per_delta=20)), FakeToken2Wav(), voices) as door:
        response = await speak_events(door, input="One two. Three!", word_timestamps=True)
        plain = await speak_events(door, input="One two. Three!")
        refused = await door.speak(word_timestamps=True)
    events, words, heard_ms = events_of(response.content), list[dict[str, Any]](), 0.0
    for event in events[:-1]:
        if event["type"] == "speech.audio.delta":
            heard_ms += len(base64.b64decode(event["audio"])) / 48
            continue
        words += event["words"]
        assert event["words"][-1]["end_ms"] <= heard_ms + 1

    assert [each["word"] for each in words] == ["One", "two.", "Three!"]
    times = [each[name] for each in words for name in ("start_ms", "end_ms")]
    assert times == sorted(times) and times[0] == 0 and times[-1] == 2400
    assert audio_of(events) == audio_of(events_of(plain.content))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "word_timestamps")


async def test_no_line_is_too_long_for_a_line_reader(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(2000, per_delta=500)), FakeToken2Wav(), voices) as door:
        response = await speak_events(door)

    assert max(map(len, response.content.split(b"\n"))) < LINE_LIMIT_BYTES
    assert len(audio_of(events_of(response.content))) == 2000 * 960 * 2


async def test_events_leave_while_the_llm_still_speaks(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(60), gate=(gate := asyncio.Event()), ungated=20)
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        body = {"model": "m", "input": "hi", "voice": "default", "stream_format": "sse", "response_format": "pcm"}
        async with door.http.stream("POST", "/v1/audio/speech", json=body) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            assert first.startswith('data: {"type":"speech.audio.delta","audio":"')
            assert llm.running == 1
            gate.set()
            assert '"speech.audio.done"' in [line async for line in lines if line][-1]


async def test_a_failure_in_mid_stream_is_told_and_breaks_the_connection(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(60)[:-1], LLMInterruptedError("died; try again"))
    received = b""
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        body = {"model": "m", "input": "hi", "voice": "default", "stream_format": "sse", "response_format": "pcm"}
        with pytest.raises(httpx.RemoteProtocolError):
            async with door.http.stream("POST", "/v1/audio/speech", json=body) as response:
                async for part in response.aiter_raw():
                    received += part
        await door.until_idle()

    last = events_of(received)[-1]
    assert (last["type"], last["error"]["code"], last["error"]["type"]) == ("error", "llm_interrupted", "server_error")
