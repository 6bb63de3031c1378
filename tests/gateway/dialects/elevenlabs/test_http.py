"""ElevenLabs' HTTP routes, as LiveKit, Pipecat and the SDK use them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import av
import httpx
import numpy as np
import pytest

from gateway.text import load_text_front_end
from gateway.voices.registry import NamedVoice
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.doors.http_door import ONE, TWO, opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.raw_clients import StalledReader

Voices = list[NamedVoice]
PATH = "/v1/text-to-speech/default"
PCM = {"output_format": "pcm_24000"}


def seconds_of(encoded: bytes) -> float:
    with av.open(io.BytesIO(encoded)) as file:
        stream = file.streams.audio[0]
        return float(sum(frame.samples for frame in file.decode(stream)) / stream.rate)


@pytest.mark.parametrize("path", [PATH, f"{PATH}/stream"])
async def test_a_text_is_answered_with_its_audio(voices: Voices, path: str) -> None:
    body = {"text": ONE, "model_id": "m", "voice_settings": None, "apply_text_normalization": "auto", "seed": 7}
    llm = FakeLLM(speech_deltas(50))
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        plain = await door.http.post(path, json=body, params=PCM)
        default = await door.http.post(path, json=body)
    assert (plain.status_code, plain.headers["content-type"]) == (200, "audio/pcm")
    assert np.frombuffer(plain.content, "<i2").tolist() == [16383] * (50 * 960)
    assert default.headers["content-type"] == "audio/mpeg"
    assert seconds_of(default.content) == pytest.approx(2.0, abs=0.1)
    assert llm.seeds == [7, 7]


SPEECH = {"model": "m", "voice": "default", "input": "hello", "response_format": "pcm"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((f"{PATH}{way}?output_format=pcm_24000", {"text": "hello"}) for way in ("/with-timestamps", "/stream")),
        (f"{PATH}/stream/with-timestamps?output_format=pcm_24000", {"text": "hello"}),
        *(("/v1/audio/speech", {**SPEECH, "stream_format": kind}) for kind in ("audio", "sse")),
    ],
    ids=["one object", "stream", "lines", "OpenAI", "OpenAI events"],
)
async def test_a_reader_who_stands_still_is_given_up(voices: Voices, path: str, body: dict[str, Any]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(25 * 600, per_delta=50)), FakeToken2Wav()
    async with opened_door(llm, token2wav, voices, reader_timeout_s=0.3) as door:
        with StalledReader(door.url) as reader:
            await reader.ask(path, body)
            await door.until(lambda: token2wav.open_streams > 0)
            await door.until_idle()
            assert not await asyncio.wait_for(reader.is_answer_whole(), 5)


@pytest.mark.parametrize("path", ["", "/with-timestamps", "/stream", "/stream/with-timestamps"])
async def test_a_text_that_holds_nothing_to_say_is_the_callers_mistake(voices: Voices, path: str) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        response = await door.http.post(PATH + path, json={"text": "🙂 ..."}, params=PCM)
    assert (response.status_code, response.json()["detail"]["status"]) == (400, "invalid_text")


async def test_lines_of_json_carry_audio_and_the_times_of_all_characters(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(100)), FakeToken2Wav(), voices) as door:
        body = {"text": f"{ONE} {TWO}", "previous_text": "So.", "voice_settings": {"speed": 2.0}}
        response = await door.http.post(f"{PATH}/stream/with-timestamps", json=body, params=PCM)
    lines = [json.loads(line) for line in response.text.splitlines()]
    audio = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    alignments = [line["alignment"] for line in lines if line["alignment"]]
    starts = [time for each in alignments for time in each["character_start_times_seconds"]]
    ends = [time for each in alignments for time in each["character_end_times_seconds"]]
    assert "".join(character for each in alignments for character in each["characters"]) == f"{ONE} {TWO}"
    assert len(audio) == 100 * 960
    assert (starts, ends) == (sorted(starts), sorted(ends))
    assert (starts[0], ends[-1]) == (0.0, 2.0), "times are absolute, and of the audio as it is played"
    assert max(map(len, response.text.splitlines())) < 64 * 1024


async def test_audio_is_sent_while_the_llm_still_speaks_and_a_client_that_leaves_stops_it(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=20)
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        async with door.http.stream("POST", f"{PATH}/stream", json={"text": ONE}, params=PCM) as response:
            assert await anext(response.aiter_raw())
            assert llm.running == 1
        await door.until_idle()


async def test_a_failure_in_mid_stream_breaks_the_connection(voices: Voices) -> None:
    token2wav = FakeToken2Wav(fail_at=1)
    async with opened_door(FakeLLM(speech_deltas(60)), token2wav, voices) as door:
        with pytest.raises(httpx.RemoteProtocolError):
            await door.http.post(PATH, json={"text": ONE}, params=PCM)
        await door.until_idle()


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        pytest.param("/v1/text-to-speech/nobody", {"text": ONE}, 404, "voice_not_found", id="voice"),
        pytest.param(PATH, {"text": " "}, 400, "invalid_text", id="empty"),
        pytest.param(f"{PATH}?output_format=x", {"text": ONE}, 400, "unsupported_option", id="format"),
        pytest.param(PATH, {"text": ONE, "voice_settings": {"speed": 9}}, 400, "unsupported_option", id="speed"),
        pytest.param(PATH, {"text": ONE, "language_code": "?"}, 400, "invalid_request", id="language"),
        pytest.param(PATH, {"text": "x" * 300_000}, 400, "text_too_long", id="body too large"),
    ],
)
async def test_bad_requests_are_refused_in_elevenlabs_shape(
    voices: Voices, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        response = await door.http.post(path, json=body)
    assert (response.status_code, response.json()["detail"]["status"]) == (status, code)
    assert response.json()["detail"]["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"text": 5}', b'{"text": "\\ud800"}', b'{"seed": 1}'])
async def test_bodies_of_the_wrong_form_are_unprocessable(voices: Voices, content: bytes) -> None:
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        response = await door.http.post(PATH, content=content)
    assert response.status_code == 422
    assert {"loc", "msg", "type"} == set(response.json()["detail"][0])


async def test_voices_are_listed_as_clients_look_for_them(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door:
        first = (await door.http.get("/v1/voices")).json()
        second = (await door.http.get("/v2/voices", params={"search": "ANN"})).json()
    assert [(voice["voice_id"], voice["name"], voice["category"]) for voice in first["voices"]] == [
        ("anna", "anna", "premade"),
        ("default", "default", "premade"),
    ]
    assert [voice["voice_id"] for voice in second["voices"]] == ["anna"]
    assert (second["has_more"], second["total_count"]) == (False, 1)
    anna, default = first["voices"]
    assert anna["description"] == "A woman, warm and quick, German."
    assert anna["labels"] == {"gender": "female", "language": "de-DE"}
    assert (default["description"], default["labels"]) == (None, {})


async def test_one_voice_is_shown_and_an_unknown_one_is_refused(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door:
        listed = (await door.http.get("/v1/voices")).json()["voices"]
        shown = (await door.http.get("/v1/voices/anna")).json()
        unknown = await door.http.get("/v1/voices/nobody")
    assert shown == listed[0]
    assert (unknown.status_code, unknown.json()["detail"]["status"]) == (404, "voice_not_found")
    assert "anna" in unknown.json()["detail"]["message"]


async def test_who_asks_has_characters_without_end(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door:
        user = (await door.http.get("/v1/user")).json()
        subscription = (await door.http.get("/v1/user/subscription")).json()
    assert user["user_id"] == "(gateway)"
    assert user["subscription"].items() <= subscription.items()
    assert (subscription["status"], subscription["character_count"]) == ("active", 0)
    assert subscription["character_limit"] > 1e9
    assert subscription["can_use_instant_voice_cloning"] is False, "this door keeps no voices"


@pytest.mark.parametrize("output", ["pcm_24000", "mp3_44100_128"])
async def test_one_object_carries_all_audio_and_the_times_of_all_characters(voices: Voices, output: str) -> None:
    body = {"text": f"{ONE} {TWO}", "voice_settings": {"speed": 2.0}}
    async with opened_door(FakeLLM(speech_deltas(100)), FakeToken2Wav(), voices) as door:
        response = await door.http.post(f"{PATH}/with-timestamps", json=body, params={"output_format": output})
        plain = await door.http.post(PATH, json=body, params={"output_format": output})
    answer = response.json()
    assert response.headers["content-type"] == "application/json"
    assert set(answer) == {"audio_base64", "alignment", "normalized_alignment"}
    assert base64.b64decode(answer["audio_base64"], validate=True) == plain.content
    alignment = answer["alignment"]
    assert "".join(alignment["characters"]) == f"{ONE} {TWO}"
    assert alignment["character_start_times_seconds"][0] == 0.0
    assert alignment["character_end_times_seconds"][-1] == 2.0, "as it is played, at twice the speed"


HAPPY, SOFT = "Please say a sentence very happily.", "Please say a sentence in a very soft voice."


async def test_what_follows_goes_on_from_speech_under_the_same_instruction(voices: Voices) -> None:
    body = {"text": "One two three. <break time='20ms'/> Four. [whispers] Five.", "model_id": "eleven_v3"}
    happy = {**body, "text": f"[happy] {body['text']}"}
    front_end = load_text_front_end(None, CheckpointDeclaration(tags=("[laughter]",), instruct="endofprompt"))
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices, front_end=front_end) as door:
        assert (await door.http.post(PATH, json=body, params=PCM)).is_success
        first, second, third = llm.utterances
        assert first.reference_text == "I am default." and second.reference_text == "I am default.One two three. "
        assert (third.reference_text, third.reference_tokens) == ("", ())
        llm.utterances.clear()
        assert (await door.http.post(PATH, json=happy, params=PCM)).is_success
        first, second, third = llm.utterances
        assert (first.instruction, second.instruction, third.instruction) == (HAPPY, HAPPY, SOFT)
        assert (second.reference_text, len(second.reference_tokens)) == ("One two three. ", 30)
        assert not third.reference_tokens
