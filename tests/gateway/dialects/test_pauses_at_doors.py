"""Pauses at every door: heard to the sample, told in the times, and refused where they can't be had."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.voices.registry import NamedVoice
from tests.gateway.dialects.socket_door import AUTO, SINGLE, STREAM, alignments_of, begin, end, opened_door, samples_of
from tests.gateway.doors.grpc_door import failure_of, listen, opened_grpc
from tests.gateway.doors.http_door import opened_door as opened_http_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
TEXT, BAD = 'One.<break time="300ms"/>Two.', 'One.<break time="11s"/>Two.'
TOKENS = 50
SPEECH, SILENCE = TOKENS * 960, 7200
ROUNDED = 5
"""Samples of a fade that are less than half a step of 16 bits."""
TOLD = "the longest is 10s"


def is_paused(samples: object) -> bool:
    """Tell whether there is speech, then the silence of the text, then speech, and nothing else."""
    heard = np.asarray(samples, "<i2")
    silent = np.flatnonzero(heard == 0)
    begins, ends = SPEECH - silent[0], silent[-1] + 1 - SPEECH - SILENCE
    is_whole = len(heard) == 2 * SPEECH + SILENCE and not heard[SPEECH : SPEECH + SILENCE].any()
    return bool(is_whole and 0 <= begins < ROUNDED and 0 <= ends < ROUNDED)


def llm() -> FakeLLM:
    return FakeLLM(speech_deltas(TOKENS))


async def test_openai(voices: Voices) -> None:
    async with opened_http_door(llm(), FakeToken2Wav(), voices) as door:
        answer = await door.speak(input=TEXT, response_format="pcm")
        refused = await door.speak(input=BAD, response_format="pcm")
    assert is_paused(np.frombuffer(answer.content, "<i2"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert TOLD in refused.json()["error"]["message"]


async def test_elevenlabs_http(voices: Voices) -> None:
    path, pcm = "/v1/text-to-speech/default", {"output_format": "pcm_24000"}
    async with opened_door(llm(), FakeToken2Wav(), voices) as door, door.http() as http:
        answer = await http.post(path, json={"text": TEXT}, params=pcm)
        timed = await http.post(f"{path}/stream/with-timestamps", json={"text": TEXT}, params=pcm)
        refused = await http.post(path, json={"text": BAD}, params=pcm)
    assert is_paused(np.frombuffer(answer.content, "<i2"))
    lines = [json.loads(line)["alignment"] for line in timed.text.splitlines()]
    starts = [start for line in lines if line for start in line["character_start_times_seconds"]]
    assert starts[TEXT.index("Two")] == pytest.approx(2.3)
    assert refused.status_code == 400 and TOLD in refused.json()["detail"]["message"]


async def test_elevenlabs_multi_stream_input(voices: Voices) -> None:
    async with (
        opened_door(llm(), FakeToken2Wav(), voices) as door,
        door.client(f"{AUTO}&sync_alignment=true") as client,
    ):
        await begin(client, "c1", f"{TEXT} ")
        await end(client)
        heard = (await client.until_final("c1"))["c1"]
        await begin(client, "c2", f"{BAD} ")
        refused = (await client.until_final("c2"))["c2"]
    assert is_paused(samples_of(heard))
    starts = [start for alignment in alignments_of(heard) for start in alignment["charStartTimesMs"]]
    assert starts[TEXT.index("Two")] == pytest.approx(2300)
    assert TOLD in refused[0]["error"] and refused[-1]["isFinal"]


async def test_elevenlabs_stream_input_in_pieces(voices: Voices) -> None:
    async with opened_door(llm(), FakeToken2Wav(), voices) as door, door.client(SINGLE) as client:
        await client.send(text=" ")
        for at in range(0, len(TEXT), 3):
            await client.send(text=TEXT[at : at + 3])
        await client.send(text="")
        _, heard = await client.until_closed()
    assert is_paused(samples_of(heard))


async def test_the_socket_of_sentences(voices: Voices) -> None:
    config = {"type": "session.config", "response_format": "pcm", "stream_audio": True, "word_timestamps": True}
    async with opened_door(llm(), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await client.send(**config)
        await client.send(type="input.text", text=TEXT)
        await client.send(type="input.done")
        heard = [await client.receive()]
        while heard[-1]["type"] != "session.done":
            heard.append(await client.receive())
        await client.send(type="input.text", text=BAD)
        refused = await client.receive()
        while refused["type"] != "error":
            refused = await client.receive()
    audio = [{"audio": each.get("audio_b64")} for each in heard if each["type"] == "audio.chunk"]
    words = [word for each in heard for word in (each.get("timestamps") or [])]
    assert is_paused(samples_of(audio))
    assert [word["word"] for word in words] == ["One.", "Two."]
    assert words[1]["start_ms"] == 0, "times count from the sentence's first sample"
    done = next(index for index, each in enumerate(heard) if each["type"] == "audio.done")
    first = [{"audio": each.get("audio_b64")} for each in heard[:done] if each["type"] == "audio.chunk"]
    assert len(samples_of(first)) == SPEECH + SILENCE, "the silence belongs to the sentence before it"
    assert TOLD in json.dumps(refused)


async def test_our_grpc(voices: Voices) -> None:
    async with opened_grpc(llm(), FakeToken2Wav(), voices) as door:
        request = tts_service_pb2.SynthesizeRequest(text=TEXT, config=speech_pb2.SpeechConfig())
        heard = await listen(door.tts.Synthesize(request))
        failure = await failure_of(door.tts.Synthesize(tts_service_pb2.SynthesizeRequest(text=BAD)))
    assert is_paused(np.frombuffer(heard.content, "<i2"))
    characters = [each for audio in heard.audio for each in audio.characters]
    assert characters[TEXT.index("Two")].start_s == pytest.approx(2.3)
    assert heard.finished.sent_samples == 2 * SPEECH + SILENCE
    assert failure[0] is grpc.StatusCode.INVALID_ARGUMENT and TOLD in failure[1]


async def test_riva(voices: Voices) -> None:
    fields = {"encoding": "LINEAR_PCM", "sample_rate_hz": 24000, "enable_word_time_offsets": True}
    async with opened_grpc(llm(), FakeToken2Wav(), voices) as door:
        answer = await door.riva.Synthesize(riva_tts_pb2.SynthesizeSpeechRequest(text=TEXT, **fields))
        bad = riva_tts_pb2.SynthesizeSpeechRequest(text=BAD, **fields)
        failure = await failure_of(door.riva.SynthesizeOnline(iter([bad])))
    assert is_paused(np.frombuffer(answer.audio, "<i2"))
    assert [(word.word, word.start_time) for word in answer.meta.words] == [("One.", 0), ("Two.", 2300)]
    assert failure[0] is grpc.StatusCode.INVALID_ARGUMENT and TOLD in failure[1]
