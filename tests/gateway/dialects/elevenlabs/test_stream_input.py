"""ElevenLabs' socket of one text, as the SDK's `convert_realtime` speaks it."""

from __future__ import annotations

from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import ONE, SINGLE, TWO, opened_door, samples_of, text_of
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
CONFIG = {"chunk_length_schedule": [50]}


async def test_a_text_as_the_sdk_sends_it_ends_with_a_normal_close(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(SINGLE) as client:
        first = {"text": " ", "try_trigger_generation": True, "voice_settings": None, "generation_config": CONFIG}
        await client.send(**first)
        for word in f"{ONE} {TWO}".split():
            await client.send(text=f"{word} ", try_trigger_generation=True)
        await client.send(text="")
        code, messages = await client.until_closed()
        await door.until_idle()
    assert code == 1000
    assert text_of(messages) == f"{ONE} {TWO} "
    assert messages[-1]["isFinal"] is True
    assert messages[-1]["audio"] is None
    assert not any("contextId" in message or "message" in message for message in messages)


async def test_speech_begins_before_the_text_ends(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(SINGLE) as client:
        await client.send(text=" ")
        await client.send(text=f"{ONE} And ")
        assert samples_of([await client.receive()])
        await client.send(text="so on ", flush=True)
        await client.send(text="")
        assert (await client.until_closed())[0] == 1000


async def test_an_empty_text_is_an_empty_answer(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door, door.client(SINGLE) as client:
        await client.send(text="")
        code, messages = await client.until_closed()
    assert (code, [message.get("isFinal") for message in messages]) == (1000, [True])


async def test_a_failure_is_the_last_message_and_the_close_code(voices: Voices) -> None:
    token2wav = FakeToken2Wav(fail_at=1)
    async with opened_door(FakeLLM(speech_deltas(60)), token2wav, voices) as door, door.client(SINGLE) as client:
        await client.send(text=ONE, flush=True)
        code, messages = await client.until_closed()
        await door.until_idle()
    assert code == 1011
    assert (messages[-1]["message"], messages[-1]["error"]) == (
        "the audio was interrupted; try again",
        "token2wav_interrupted",
    )


async def test_a_wish_that_cannot_be_met_closes_the_socket(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door, door.client(SINGLE) as client:
        await client.send(text=" ", voice_settings={"speed": 9})
        code, messages = await client.until_closed()
    assert (code, messages[-1]["error"]) == (1008, "unsupported_option")


async def test_a_writer_who_falls_silent_is_told_so(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        async with door.client(f"{SINGLE}&inactivity_timeout=2") as client:
            await client.send(text=ONE, flush=True)
            code, messages = await client.until_closed()
            await door.until_idle()
    assert (code, messages[-1]["error"]) == (1008, "input_timeout_exceeded")
    assert text_of(messages) == ONE
