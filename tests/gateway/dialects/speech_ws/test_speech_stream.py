"""`/v1/audio/speech/stream` as the clients of vllm-omni and of sglang-omni speak it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed

from gateway.core import InlineVoice
from gateway.dialects.json_socket import MOST_REFUSED
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import ONE, PATIENCE_S, STREAM, TWO, Client, opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.gateway.speech.test_interleaved import TakingLLM

Voices = list[NamedVoice]
Message = dict[str, Any] | bytes


async def configure(client: Client, **fields: Any) -> dict[str, Any]:
    await client.send(type="session.config", **fields)
    answer = await client.receive()
    assert answer["type"] == "session.configured", answer
    return answer


async def say(client: Client, text: str) -> None:
    await client.send(type="input.text", text=text)
    await client.send(type="input.done")


async def until_done(client: Client) -> list[Message]:
    """Receive to the end of an utterance."""
    heard: list[Message] = []
    while not (heard and isinstance(heard[-1], dict) and heard[-1]["type"] == "session.done"):
        message = await asyncio.wait_for(client.connection.recv(), PATIENCE_S)
        heard.append(message if isinstance(message, bytes) else json.loads(message))
    return heard


def kinds(heard: list[Message]) -> list[str]:
    """What came, with audio in a row as one."""
    names = ["audio" if isinstance(each, bytes) else str(each["type"]) for each in heard]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != "audio" or before != "audio"]


def events(heard: list[Message], kind: str) -> list[dict[str, Any]]:
    return [each for each in heard if isinstance(each, dict) and each["type"] == kind]


def audio_of(heard: list[Message]) -> bytes:
    return b"".join(each for each in heard if isinstance(each, bytes))


async def test_sentences_are_announced_streamed_and_counted(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        configured = await configure(client, voice="anna", response_format="pcm", stream_audio=True)
        for word in f"{ONE} {TWO}".split():
            await client.send(type="input.text", text=f"{word} ")
        await client.send(type="input.done")
        heard = await until_done(client)
        await door.until_idle()
    assert (configured["response_format"], configured["sample_rate"]) == ("pcm", 24000)
    assert kinds(heard) == ["audio.start", "audio", "audio.done"] * 2 + ["session.done"]
    starts, dones = events(heard, "audio.start"), events(heard, "audio.done")
    assert [start["sentence_text"] for start in starts] == [ONE, TWO]
    assert [(start["format"], start["sample_rate"], start["channels"]) for start in starts] == [("pcm", 24000, 1)] * 2
    assert [(done["sentence_index"], done["total_bytes"], done["error"]) for done in dones] == [
        (0, 30 * 960 * 2, False),
        (1, 30 * 960 * 2, False),
    ]
    assert np.frombuffer(audio_of(heard), "<i2").tolist() == [16383] * (60 * 960)
    assert (heard[-1]["total_sentences"], heard[-1]["utterance_index"]) == (2, 0)  # type: ignore[call-overload]


async def test_a_config_may_come_inside_a_session_object_as_sglang_sends_it(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        fields = {"model": "m", "speaker": "anna", "response_format": "pcm", "stream_audio": True, "top_p": 0.6}
        await configure(client, session=fields)
        await say(client, ONE)
        assert len(audio_of(await until_done(client))) == 30 * 960 * 2


async def test_unless_streamed_a_sentence_is_one_file(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client)
        await say(client, f"{ONE} {TWO}")
        files = [each for each in await until_done(client) if isinstance(each, bytes)]
    assert len(files) == 2
    for file in files:
        samples, rate = soundfile.read(io.BytesIO(file), dtype="int16")
        assert (len(samples), rate) == (30 * 960, 24000)


async def test_without_splitting_an_utterance_is_one_sentence(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client, response_format="wav", split_granularity="none")
        await say(client, f"{ONE} {TWO}")
        heard = await until_done(client)
        await client.send(type="input.text", text="word " * 1000)
        assert "4096" in (await client.receive())["message"]
    assert kinds(heard) == ["audio.start", "audio", "audio.done", "session.done"]
    assert events(heard, "audio.start")[0]["sentence_text"] == f"{ONE} {TWO}"
    assert len(soundfile.read(io.BytesIO(audio_of(heard)))[0]) == 30 * 960 * len(llm.utterances)


async def test_words_come_with_their_times_within_the_sentence(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client, response_format="pcm", stream_audio=True, word_timestamps=True)
        await say(client, f"{ONE} {TWO}")
        heard = await until_done(client)
    chunks = events(heard, "audio.chunk")
    assert sum(len(base64.b64decode(chunk["audio_b64"])) for chunk in chunks) == 60 * 960 * 2
    timed = [chunk["timestamps"] for chunk in chunks if chunk["timestamps"] is not None]
    assert [[each["word"] for each in words] for words in timed] == [ONE.split(), TWO.split()]
    for words in timed:
        times = [time for each in words for time in (each["start_ms"], each["end_ms"])]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= 1200
    last = [chunk for chunk in chunks if chunk["timestamps"] is not None]
    assert [(chunk["audio_b64"], chunk["chunk_end_ms"]) for chunk in last] == [("", 1200)] * 2


async def test_speech_begins_before_the_text_ends(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client, stream_audio=True)
        await client.send(type="input.text", text=f"{ONE} And so")
        assert (await client.receive())["type"] == "audio.start"


async def test_utterances_follow_one_another_on_one_connection(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client, stream_audio=True)
        await say(client, ONE)
        await say(client, TWO)
        await client.send(type="input.done")
        ends = [(await until_done(client))[-1] for _ in range(3)]
        await configure(client, voice="anna")
        await client.send(type="session.close")
        with pytest.raises(ConnectionClosed) as closed:
            await client.connection.recv()
        await door.until_idle()
    assert [(end["utterance_index"], end["total_sentences"]) for end in ends] == [  # type: ignore[call-overload]
        (0, 1),
        (1, 1),
        (2, 0),
    ]
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


async def test_closing_a_session_lets_what_is_complete_be_heard(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client, stream_audio=True)
        await say(client, ONE)
        await client.send(type="input.text", text=TWO)
        await client.send(type="session.close")
        assert len(audio_of(await until_done(client))) == 30 * 960 * 2
        assert (await until_done(client))[-1]["progress"]["cancelled"]  # type: ignore[call-overload]
        with pytest.raises(ConnectionClosed):
            await client.connection.recv()


async def test_a_cancel_stops_what_is_spoken_and_what_waits_and_says_how_far_it_came(voices: Voices) -> None:
    llm, token2wav = FakeLLM(speech_deltas(2000)), FakeToken2Wav()
    async with opened_door(llm, token2wav, voices, clock=ManualClock(), run_ahead_s=1.0) as door:
        async with door.client(STREAM) as client:
            await configure(client, stream_audio=True)
            await say(client, ONE)
            await say(client, TWO)
            await client.receive()
            await client.connection.recv()
            await client.send(type="input.cancel")
            first, second = await until_done(client), await until_done(client)
            await door.until_idle()
            llm.deltas = speech_deltas(20)
            await say(client, ONE)
            assert len(audio_of(await until_done(client))) == 20 * 960 * 2, "the connection goes on"
    progress = events(first, "session.done")[0]["progress"]
    assert progress["cancelled"] and 0 < progress["samples_sent"] <= progress["samples_generated"] <= 24_000 + 15 * 960
    assert len(token2wav.streams[0].chunks) < 10
    assert kinds(second) == ["session.done"]


async def test_a_failure_is_told_and_the_connection_goes_on(voices: Voices) -> None:
    token2wav = FakeToken2Wav(fail_at=1)
    async with opened_door(FakeLLM(speech_deltas(60)), token2wav, voices) as door, door.client(STREAM) as client:
        await configure(client, stream_audio=True)
        await say(client, ONE)
        heard = await until_done(client)
        token2wav.fail_at = None
        await say(client, ONE)
        assert len(audio_of(await until_done(client))) == 60 * 960 * 2
    assert kinds(heard) == ["audio.start", "audio", "error", "audio.done", "session.done"]
    error, done = events(heard, "error")[0], events(heard, "audio.done")[0]
    assert (error["code"], error["action"], done["error"]) == ("token2wav_interrupted", "discard", True)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        pytest.param({"type": "input.text", "text": "x"}, "session.config", id="text before a config"),
        pytest.param({"type": "input.done"}, "session.config", id="end before a config"),
        pytest.param({"type": "nonsense"}, "unknown type", id="unknown type"),
        pytest.param({"type": "session.config", "voice": "nobody"}, "nobody", id="voice"),
        pytest.param({"type": "session.config", "response_format": "ogg"}, "response_format", id="format"),
        pytest.param({"type": "session.config", "stream_audio": True, "response_format": "mp3"}, "pcm", id="streamed"),
        pytest.param({"type": "session.config", "word_timestamps": True}, "stream_audio", id="word times"),
        pytest.param({"type": "session.config", "instructions": "sing", "style": "a"}, "instructions", id="styles"),
        pytest.param({"type": "session.config", "speed": 9}, "speed", id="speed"),
        pytest.param({"type": "session.config", "seed": -1}, "seed", id="seed"),
        pytest.param({"type": "session.config", "language": "?"}, "language", id="language"),
        pytest.param({"type": "session.config", "ref_audio": "http://x/y.wav"}, "ref_audio", id="address"),
        pytest.param({"type": "session.config", "ref_audio": "data:audio/wav;base64,?"}, "base64", id="no base64"),
        pytest.param({"type": "session.config", "session": [1]}, "session", id="session is a list"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_the_connection_goes_on(
    voices: Voices, message: dict[str, Any], word: str
) -> None:
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await client.send(**message)
        refusal = await client.receive()
        await configure(client, stream_audio=True)
        await say(client, ONE)
        assert len(audio_of(await until_done(client))) == 20 * 960 * 2
    assert refusal["type"] == "error"
    assert word in refusal["message"]


async def test_a_connection_of_refused_messages_alone_is_closed(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        for count in (MOST_REFUSED - 1, MOST_REFUSED):
            for _ in range(count):
                await client.send(type="nonsense")
                assert (await client.receive())["type"] == "error"
            if count < MOST_REFUSED:
                await configure(client)
        with pytest.raises(ConnectionClosed, match="in a row"):
            await client.receive()


async def test_a_config_in_the_middle_of_a_text_is_refused(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), voices) as door, door.client(STREAM) as client:
        await configure(client)
        await client.send(type="input.text", text="So")
        await client.send(type="session.config", voice="anna")
        assert "input.done" in (await client.receive())["message"]


async def test_a_recording_that_comes_along_is_the_voice(voices: Voices) -> None:
    token2wav, llm = FakeToken2Wav(), FakeLLM(speech_deltas(20))
    recording = "data:audio/wav;base64," + base64.b64encode(b"RIFF").decode()
    async with opened_door(llm, token2wav, voices) as door, door.client(STREAM) as client:
        for has_transcript in (True, False):
            fields = {"ref_audio": recording, "ref_text": "I say.", "x_vector_only_mode": not has_transcript}
            await configure(client, **fields, language="English", stream_audio=True)
            await say(client, ONE)
            await until_done(client)
    assert token2wav.registrations == [InlineVoice(b"RIFF").audio]
    assert [each.reference_text for each in llm.utterances] == ["I say.", ""]


async def test_a_silent_connection_is_closed(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices, idle_timeout_s=0.05) as door:
        async with door.client(STREAM) as client:
            code, messages = await client.until_closed()
    assert (code, messages[-1]["type"]) == (1008, "error")


async def test_utterances_that_wait_are_bounded(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(20), gate=asyncio.Event())
    async with opened_door(llm, FakeToken2Wav(), voices, max_contexts=2) as door, door.client(STREAM) as client:
        await configure(client, stream_audio=True)
        for _ in range(3):
            await say(client, ONE)
        assert "session.done" in (await client.receive())["message"]


async def test_an_utterance_that_is_interleaved_is_one_sentence(voices: Voices) -> None:
    llm = TakingLLM()
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(STREAM) as client:  # type: ignore[arg-type]
        await configure(client, stream_audio=True, text_mode="interleaved")
        await say(client, f"{ONE} {TWO}")
        heard = await until_done(client)
        await client.send(type="session.config", text_mode="interleaved", split_granularity="clause")
        refused = await client.receive()
        await client.send(type="session.config", text_mode="sideways")
        unknown = await client.receive()
        await door.until_idle()
    assert ["".join(pieces).strip() for pieces in llm.answers] == [f"{ONE} {TWO}"]
    assert kinds(heard) == ["audio.start", "audio", "audio.done", "session.done"]
    assert (refused["type"], refused["param"]) == ("error", "split_granularity")
    assert (unknown["type"], unknown["param"]) == ("error", "text_mode")
