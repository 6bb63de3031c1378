"""The formats of POST /v1/audio/speech, decoded again; speed, while streaming."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import soxr

from gateway.audio import AudioFormat, parse_openai_format
from gateway.voices.registry import NamedVoice
from tests.gateway.audio.signals import best_lag
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.speaking import SPEECH_TOKENS, SpeakingToken2Wav, audio_of, events_of, spoken_sound

pytest.importorskip("av", reason="the audio extra is not installed")
from tests.gateway.audio.signals import decoded

Voices = list[NamedVoice]

MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
FORMATS = list(MEDIA_TYPES)
MAX_CODEC_DELAY_SAMPLES = 1300
COMPARED_SAMPLES = 18_000
"""Beyond the first window, so that a seam would be noticed."""


def assert_is_the_sound(data: bytes, name: str) -> None:
    """Fail unless `data` decodes to what the fake spoke."""
    got, rate_hz = decoded(data, AudioFormat(name), 24_000)
    step = rate_hz // 24_000
    assert len(got) / rate_hz == pytest.approx(len(spoken_sound()) / 24_000, abs=0.15)
    assert best_lag(got[::step], spoken_sound()[:COMPARED_SAMPLES], MAX_CODEC_DELAY_SAMPLES)[1] > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_decodes_to_the_speech(voices: Voices, name: str) -> None:
    async with opened_door(FakeLLM(speech_deltas(SPEECH_TOKENS)), SpeakingToken2Wav(), voices) as door:
        bare = await door.speak(response_format=name)
        events = await door.speak(response_format=name, stream_format="sse")

    assert (bare.headers["content-type"], events.headers["content-type"]) == (MEDIA_TYPES[name], "text/event-stream")
    assert_is_the_sound(bare.content, name)
    assert_is_the_sound(audio_of(events_of(events.content)), name)


@pytest.mark.parametrize(
    ("name", "asked_hz", "rate_hz", "media_type"),
    [
        pytest.param("pcm_mulaw", None, 8000, "audio/pcmu", id="mu-law"),
        pytest.param("alaw", None, 8000, "audio/pcma", id="A-law"),
        pytest.param("pcm", 8000, 8000, "audio/pcm", id="8 kHz"),
        pytest.param("wav", 16_000, 16_000, "audio/wav", id="16 kHz"),
        pytest.param("mp3", 44_100, 44_100, "audio/mpeg", id="44.1 kHz"),
        pytest.param("flac", 48_000, 48_000, "audio/flac", id="48 kHz"),
    ],
)
async def test_a_sample_rate_is_what_was_asked_for(
    voices: Voices, name: str, asked_hz: int | None, rate_hz: int, media_type: str
) -> None:
    async with opened_door(FakeLLM(speech_deltas(SPEECH_TOKENS)), SpeakingToken2Wav(), voices) as door:
        answer = await door.speak(response_format=name, **({} if asked_hz is None else {"sample_rate": asked_hz}))

    assert (answer.headers["content-type"], answer.headers["x-sample-rate"]) == (media_type, str(rate_hz))
    got, decoded_hz = decoded(answer.content, parse_openai_format(name).audio_format, rate_hz)
    wanted = soxr.resample(spoken_sound(), 24_000, rate_hz)
    assert decoded_hz == rate_hz
    assert len(got) / rate_hz == pytest.approx(len(spoken_sound()) / 24_000, abs=0.15)
    assert best_lag(got, wanted[: rate_hz // 2], MAX_CODEC_DELAY_SAMPLES)[1] > 0.98


@pytest.mark.parametrize("rate", [7999, 96_000, 0, -8000, "8000", 8000.5, True])
async def test_a_sample_rate_that_cant_be_is_the_callers_mistake(voices: Voices, rate: object) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        answer = await door.speak(response_format="pcm", sample_rate=rate)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sample_rate")


@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_leaves_while_the_llm_still_speaks(voices: Voices, name: str) -> None:
    llm = FakeLLM(speech_deltas(60), gate=(gate := asyncio.Event()), ungated=20)
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        body = {"model": "m", "input": "hello", "voice": "default", "response_format": name, "speed": 0.9}
        async with door.http.stream("POST", "/v1/audio/speech", json=body) as response:
            parts = response.aiter_raw()
            first = await anext(parts)
            assert door.llm.running == 1
            gate.set()
            whole = first + b"".join([part async for part in parts])
    samples, rate_hz = decoded(whole, AudioFormat(name), 24_000)
    assert len(samples) / rate_hz == pytest.approx(60 / 25 / 0.9, abs=0.15)


@pytest.mark.parametrize("speed", [0.25, 1.5, 4])
async def test_speed_changes_the_length_to_the_sample(voices: Voices, speed: float) -> None:
    async with opened_door(FakeLLM(speech_deltas(SPEECH_TOKENS)), SpeakingToken2Wav(), voices) as door:
        response = await door.speak(response_format="pcm", speed=speed)

    assert len(np.frombuffer(response.content, "<i2")) == round(len(spoken_sound()) / speed)


async def test_a_request_without_a_format_gets_the_doors_own(voices: Voices) -> None:
    llm, token2wav = FakeLLM(speech_deltas(SPEECH_TOKENS)), SpeakingToken2Wav()
    async with opened_door(llm, token2wav, voices, default_format=AudioFormat.MP3) as door:
        response = await door.speak()

    assert response.headers["content-type"] == "audio/mpeg"
    assert_is_the_sound(response.content, "mp3")
