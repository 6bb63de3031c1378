"""SSML at every door that takes it: spoken where a request says so, and refused with its place."""

from __future__ import annotations

import json

import grpc
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.voices.registry import NamedVoice
from tests.gateway.dialects.socket_door import AUTO, SINGLE, STREAM, begin, end, opened_door, text_of
from tests.gateway.doors.grpc_door import failure_of, listen, opened_grpc
from tests.gateway.doors.http_door import opened_door as opened_http_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
SSML = '<speak>Room <say-as interpret-as="digits">42</say-as>.<break time="100ms"/>Now.</speak>'
SPOKEN = ["Room four two.", "Now."]
BAD, TOLD = "<speak>One<phoneme ph='x'>a</phoneme></speak>", "line 1, column 11"


def spoken(llm: FakeLLM) -> list[str]:
    texts = [utterance.text.strip() for utterance in llm.utterances]
    llm.utterances.clear()
    return texts


async def test_openai(voices: Voices) -> None:
    async with opened_http_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        await door.until_ready()
        door.llm.utterances.clear()
        assert (await door.speak(input=SSML, ssml=True, response_format="pcm")).status_code == 200
        assert spoken(door.llm) == SPOKEN
        refused = await door.speak(input=BAD, ssml=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        assert TOLD in refused.json()["error"]["message"] and "CosyVoice3" in refused.json()["error"]["message"]
        assert (await door.speak(input=BAD, response_format="pcm")).status_code == 200, "tags of a text go"
        assert spoken(door.llm) == ["Onea."]


async def test_elevenlabs(voices: Voices) -> None:
    path = "/v1/text-to-speech/default?output_format=pcm_24000"
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.http() as http:
        for asked in (path, f"{path}&enable_ssml_parsing=true"):
            body = {"text": SSML, "enable_ssml_parsing": None if "ssml" in asked else True}
            assert (await http.post(asked, json=body)).status_code == 200
            assert spoken(door.llm) == SPOKEN
        refused = await http.post(path, json={"text": BAD, "enable_ssml_parsing": True})
        assert refused.status_code == 400 and TOLD in refused.json()["detail"]["message"]
        async with door.client(f"{AUTO}&enable_ssml_parsing=true") as client:
            await begin(client, "c1", f"{SSML[7:-8]} ")
            await end(client)
            heard = (await client.until_final("c1"))["c1"]
            assert spoken(door.llm) == SPOKEN
            assert text_of(heard).strip() == SSML[7:-8], "the alignment is of the text as it was sent"
            await begin(client, "c2", "<b>One</b> ")
            refusal = (await client.until_final("c2"))["c2"]
            assert "<b> is not known here" in refusal[0]["error"]
        async with door.client(f"{SINGLE}&enable_ssml_parsing=true") as client:
            for at in range(0, len(SSML), 5):
                await client.send(text=SSML[at : at + 5])
            await client.send(text="")
            await client.until_closed()
            assert spoken(door.llm) == SPOKEN


async def test_the_socket_of_sentences(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await client.send(
            type="session.config", ssml=True, response_format="pcm", stream_audio=True, word_timestamps=True
        )
        for text in (SSML, BAD):
            await client.send(type="input.text", text=text)
            await client.send(type="input.done")
        heard = [await client.receive()]
        while sum(each["type"] == "session.done" for each in heard) < 1 or heard[-1]["type"] != "session.done":
            heard.append(await client.receive())
        assert spoken(door.llm) == SPOKEN
        while not any(each["type"] == "error" for each in heard):
            heard.append(await client.receive())
    assert TOLD in json.dumps(heard)


async def test_our_grpc(voices: Voices) -> None:
    config = speech_pb2.SpeechConfig(ssml=True)
    async with opened_grpc(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        await listen(door.tts.Synthesize(tts_service_pb2.SynthesizeRequest(text=SSML, config=config)))
        assert spoken(door.llm) == SPOKEN
        failure = await failure_of(door.tts.Synthesize(tts_service_pb2.SynthesizeRequest(text=BAD, config=config)))
    assert failure[0] is grpc.StatusCode.INVALID_ARGUMENT and TOLD in failure[1]


async def test_riva(voices: Voices) -> None:
    fields = {"encoding": "LINEAR_PCM", "sample_rate_hz": 24000, "language_code": "en-US"}
    async with opened_grpc(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        await door.riva.Synthesize(riva_tts_pb2.SynthesizeSpeechRequest(text=SSML, **fields))
        assert spoken(door.llm) == SPOKEN
        bad = riva_tts_pb2.SynthesizeSpeechRequest(text=BAD, **fields)
        failure = await failure_of(door.riva.SynthesizeOnline(iter([bad])))
    assert failure[0] is grpc.StatusCode.INVALID_ARGUMENT and TOLD in failure[1]
