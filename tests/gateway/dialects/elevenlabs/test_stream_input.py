"""The socket of one text; times of characters, and where everything is in the client's own text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.elevenlabs.feeds import AlignmentWriter, MessageFeed
from gateway.dialects.elevenlabs.wire import ClientMessage
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.text_clock import CharacterTime
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import ONE, SINGLE, TWO, opened_door, samples_of, text_of
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline, speech_deltas

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


gaps = st.floats(0, 0.4, allow_nan=False)
messages = st.lists(st.lists(st.tuples(gaps, gaps), max_size=6), max_size=20)
"""Of each character: the silence before it and its length, in seconds."""


def spoken(lengths: list[list[tuple[float, float]]]) -> list[list[CharacterTime]]:
    now_s, position, parts = 0.0, 0, []
    for part in lengths:
        characters = []
        for silence_s, length_s in part:
            start_s = now_s + silence_s
            now_s = start_s + length_s
            characters.append(CharacterTime("x", position, start_s, now_s))
            position += 1
        parts.append(characters)
    return parts


@given(messages)
def test_relative_times_add_up_to_absolute_ones_to_the_millisecond(lengths: list[list[tuple[float, float]]]) -> None:
    absolute, relative = AlignmentWriter(is_absolute=True), AlignmentWriter(is_absolute=False)
    clock_ms = 0
    for part in spoken(lengths):
        true, given_ = absolute.write(part), relative.write(part)
        if true is None or given_ is None:
            assert true == given_ == (None if not part else true)
            continue
        assert [clock_ms + start for start in given_["charStartTimesMs"]] == true["charStartTimesMs"]
        assert given_["charDurationsMs"] == true["charDurationsMs"]
        clock_ms += given_["charStartTimesMs"][-1] + given_["charDurationsMs"][-1]


@given(messages)
def test_times_never_go_back_and_characters_cover_the_text(lengths: list[list[tuple[float, float]]]) -> None:
    writer = AlignmentWriter(is_absolute=True)
    parts = spoken(lengths)
    written = [alignment for part in parts if (alignment := writer.write(part)) is not None]
    starts = [start for alignment in written for start in alignment["charStartTimesMs"]]
    durations = [duration for alignment in written for duration in alignment["charDurationsMs"]]
    assert len(starts) == sum(map(len, parts))
    assert all(duration >= 0 for duration in durations)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


async def test_a_position_leaves_out_the_spaces_that_were_put_between_messages(voices: list[NamedVoice]) -> None:
    session = SpeechSession(make_pipeline(FakeLLM([]), FakeToken2Wav(), voices), SpeechRequest(""))
    feed = MessageFeed(session)
    for text in ("One.", "Two. ", "Three."):
        feed.push(ClientMessage(text=text))
    assert session.characters_written == len("One. Two. Three. ")
    assert [feed.position_in_text(at) for at in range(18)] == [*range(5), *range(4, 16), 15]
