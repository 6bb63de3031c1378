"""ElevenLabs' socket of many contexts: the rules by which it serves LiveKit's and Pipecat's clients alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import (
    AUTO,
    LIVEKIT,
    MULTI,
    ONE,
    TWO,
    alignments_of,
    begin,
    end,
    opened_door,
    samples_of,
    text_of,
)
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.gateway.speech.test_interleaved import TakingLLM

Voices = list[NamedVoice]
SOUND = 16383
"""What the faked token2wav says, as 16-bit PCM."""


async def test_a_turn_as_livekit_sends_it(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(LIVEKIT) as client:
        await client.send(text=" ", voice_settings={}, context_id="c1")
        await client.send(text=f"{ONE} ", context_id="c1", flush=True)
        await client.send(text=f"{TWO} ", context_id="c1", flush=True)
        await client.send(text="", context_id="c1", flush=True)
        await client.send(context_id="c1", close_context=True)
        heard = (await client.until_final("c1"))["c1"]
        await door.until_idle()
    assert [each.text for each in llm.utterances] == [f"{ONE} ", f"{TWO} "]
    assert samples_of(heard) == [SOUND] * (60 * 960)
    assert text_of(heard) == f"{ONE} {TWO} "
    starts = [start for alignment in alignments_of(heard) for start in alignment["charStartTimesMs"]]
    assert starts == sorted(starts)
    assert 1200 < starts[-1] < 2400, "times are absolute: the last character is in the second sentence"


async def test_a_turn_as_pipecat_sends_it(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(AUTO) as client:
        await begin(client, "c1", ONE, TWO)
        await end(client)
        heard = (await client.until_final("c1"))["c1"]
        await client.send(context_id="c1", close_context=True)
        await begin(client, "c2", ONE)
        await end(client, "c2")
        assert set(await client.until_final("c2")) == {"c2"}, "closing a context that is over does nothing"
    assert text_of(heard) == f"{ONE} {TWO} ", "a space is put behind each message, for who reads words off"
    spans = [each["charStartTimesMs"][-1] + each["charDurationsMs"][-1] for each in alignments_of(heard)]
    assert sum(spans) == 2400, "times begin anew in each message, and the spans add up to the audio"
    assert {message["contextId"] for message in heard} == {"c1"}
    assert heard[-1]["isFinal"] is True


async def test_without_auto_mode_text_waits_for_the_schedule_or_a_flush(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(MULTI) as client:
        config = {"chunk_length_schedule": [60, 500]}
        await client.send(text=" ", context_id="c1", generation_config=config)
        await client.send(text=f"{ONE} ", context_id="c1")
        await begin(client, "c2", f"{ONE} And")
        assert (await client.receive())["contextId"] == "c2", "without a schedule a sentence is enough"
        assert len(llm.utterances) == 1
        await client.send(text=f"{TWO} And ", context_id="c1")
        while (await client.receive())["contextId"] != "c1":
            pass
        await client.send(text="so on", context_id="c1")
        await end(client)
        heard = (await client.until_final("c1"))["c1"]
    assert text_of(heard).endswith("And so on")
    assert heard[-1]["progress"]["charactersSent"] == len(f"{ONE} {TWO} And so on")


async def test_an_interleaved_text_is_one_answer_however_many_sentences_it_has(voices: Voices) -> None:
    llm = TakingLLM()
    path = f"{MULTI}&text_mode=interleaved"
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(path) as client:  # type: ignore[arg-type]
        await begin(client, "c1", *(f"{word} " for word in f"{ONE} {TWO}".split(" ")))
        await end(client)
        heard = (await client.until_final("c1"))["c1"]
    assert ["".join(pieces).strip() for pieces in llm.answers] == [f"{ONE} {TWO}"] and len(llm.answers[0]) > 3
    assert text_of(heard).strip() == f"{ONE} {TWO}"


async def test_words_in_pieces_stay_whole(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        async with door.client(MULTI) as client:
            await begin(client, "c1", "Unbe", "liev", "able", " ", "news.")
            await end(client)
            assert text_of((await client.until_final("c1"))["c1"]) == "Unbelievable news."


async def test_closing_a_context_after_text_stops_it_at_once(voices: Voices) -> None:
    llm, token2wav = FakeLLM(speech_deltas(2000)), FakeToken2Wav()
    async with opened_door(llm, token2wav, voices, clock=ManualClock(), run_ahead_s=1.0) as door:
        async with door.client(AUTO) as client:
            await begin(client, "c1", ONE)
            first = await client.receive()
            await client.send(context_id="c1", close_context=True)
            heard = (await client.until_final("c1"))["c1"]
            await door.until_idle()
    progress = heard[-1]["progress"]
    sent = len(samples_of([first, *heard]))
    assert progress["isCancelled"] is True
    assert 0 < sent == progress["samplesSent"] <= progress["samplesGenerated"] <= 24_000 + 15 * 960
    assert progress["charactersSent"] == len(text_of([first, *heard]))
    assert sum(len(stream.chunks) for stream in token2wav.streams) < 10, "the rest of 80 seconds was never made"


@pytest.mark.parametrize("texts", [(), (ONE,)], ids=["before any text", "in the same breath as its text"])
async def test_a_context_that_is_closed_before_it_speaks_is_final_too(voices: Voices, texts: tuple[str, ...]) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        async with door.client(AUTO) as client:
            await begin(client, "c1", *texts)
            await client.send(context_id="c1", close_context=True)
            assert (await client.until_final("c1"))["c1"][-1]["progress"]["isCancelled"]
            await door.until_idle()


async def test_a_second_close_stops_a_context_that_speaks_its_last_words(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(500))
    async with opened_door(llm, FakeToken2Wav(), voices, clock=ManualClock(), run_ahead_s=1.0) as door:
        async with door.client(AUTO) as client:
            await begin(client, "c1", ONE)
            await end(client)
            while len(samples_of([await client.receive()])) == 0:
                pass
            await client.send(text="", context_id="c1")
            await client.send(context_id="c1", close_context=True)
            heard = (await client.until_final("c1"))["c1"]
            await door.until_idle()
    assert heard[-1]["progress"]["isCancelled"]


async def test_contexts_do_not_disturb_each_other(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        async with door.client(AUTO) as client:
            for context_id in ("a", "b", "c"):
                await begin(client, context_id, ONE)
            await client.send(context_id="b", close_context=True)
            await end(client, "a")
            await end(client, "c")
            heard = await client.until_final("a", "b", "c")
            await door.until_idle()
    assert samples_of(heard["a"]) == samples_of(heard["c"]) == [SOUND] * (50 * 960)
    assert text_of(heard["a"]) == text_of(heard["c"]) == f"{ONE} "


@pytest.mark.parametrize("named", [{"context_id": "c1"}, {}], ids=["one id", "no id"])
@pytest.mark.parametrize("path", [AUTO, MULTI], ids=["auto", "buffered"])
@pytest.mark.parametrize("is_apart", [False, True], ids=["in one message", "in two"])
async def test_answers_under_one_id_come_one_after_the_other(
    voices: Voices, named: dict[str, str], path: str, is_apart: bool
) -> None:
    texts = [f"{number}, {ONE}" for number in ("First", "Second", "Third")]
    async with opened_door(FakeLLM(speech_deltas(60)), FakeToken2Wav(), voices, max_contexts=2) as door:
        async with door.client(path) as client:
            await client.send(text="")
            for text in texts:
                steps = [{"text": text, "flush": True}, {"close_context": True}]
                if not is_apart:
                    steps = [{**steps[0], **steps[1]}]
                for step in steps:
                    await client.send(**named, **step)
            heard = [await client.receive()]
            while sum(bool(message.get("isFinal")) for message in heard) < len(texts):
                heard.append(await client.receive())
            await door.until_idle()
    finals = [at for at, message in enumerate(heard) if message.get("isFinal")]
    answers = [heard[since:until] for since, until in zip([0, *finals], finals, strict=False)]
    assert [text_of(answer).strip() for answer in answers] == texts
    assert not any(heard[at]["progress"]["isCancelled"] for at in finals)
    assert {message["contextId"] for message in heard} == {named.get("context_id", "default")}


async def test_a_second_close_stops_all_that_an_id_has_left_and_no_other_id(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(500))
    async with opened_door(llm, FakeToken2Wav(), voices, clock=ManualClock(), run_ahead_s=1.0) as door:
        async with door.client(AUTO) as client:
            await begin(client, "other", ONE)
            for text in (ONE, TWO):
                await client.send(text=text, context_id="c1", flush=True)
                await client.send(context_id="c1", close_context=True)
            while (await client.receive())["contextId"] != "c1":
                pass
            await client.send(context_id="c1", close_context=True)
            finals: list[dict[str, Any]] = []
            while len(finals) < 2:
                message = await client.receive()
                finals += [message] if message.get("isFinal") else []
            assert len(llm.utterances) == 2, "the second answer was never begun"
            await client.send(context_id="other", close_context=True)
            await client.until_final("other")
            await door.until_idle()
    assert [(each["contextId"], each["progress"]["isCancelled"]) for each in finals] == [("c1", True)] * 2


async def test_close_socket_closes_soon_and_every_context_is_final(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_door(llm, FakeToken2Wav(), voices) as door, door.client(AUTO) as client:
        await begin(client, "done", ONE)
        heard = [await client.receive()]
        while text_of(heard) != f"{ONE} ":
            heard.append(await client.receive())
        llm.gate = asyncio.Event()
        await begin(client, "stuck", TWO)
        await client.send(close_socket=True)
        code, messages = await client.until_closed()
        await door.until_idle()
    finals = {message["contextId"]: message["progress"] for message in messages if message.get("isFinal")}
    assert code == 1000
    assert {context_id: final["isCancelled"] for context_id, final in finals.items()} == {"done": False, "stuck": True}


async def test_one_context_too_many_closes_the_socket(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30), gate=asyncio.Event())
    async with opened_door(llm, FakeToken2Wav(), voices, max_contexts=2) as door, door.client(AUTO) as client:
        for context_id in ("a", "b", "c"):
            await begin(client, context_id, ONE)
        code, messages = await client.until_closed()
        await door.until_idle()
    assert (code, messages[-1]["error"], messages[-1]["code"]) == (1008, "max_active_conversations", 1008)


async def test_a_silent_socket_is_closed_and_keepalives_keep_it(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door:
        async with door.client(f"{AUTO}&inactivity_timeout=1.0") as client:
            await begin(client, "c1", ONE)
            for _ in range(5):
                await asyncio.sleep(0.3)
                await client.send(text="")
            code, messages = await client.until_closed()
            await door.until_idle()
    assert (code, messages[-1]["error"]) == (1008, "input_timeout_exceeded")
    assert text_of(messages) == f"{ONE} "
    assert [message["contextId"] for message in messages if message.get("isFinal")] == ["c1"]


async def test_a_context_that_speaks_its_last_words_is_not_silent(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(30), gate=asyncio.Event())
    async with opened_door(llm, FakeToken2Wav(), voices) as door:
        async with door.client(f"{AUTO}&inactivity_timeout=0.5") as client:
            await begin(client, "c1", ONE)
            await end(client)
            await asyncio.sleep(0.8)
            assert llm.gate is not None
            llm.gate.set()
            assert text_of((await client.until_final("c1"))["c1"]) == f"{ONE} "


async def test_speed_shortens_the_audio_and_the_times(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(100)), FakeToken2Wav(), voices) as door:
        async with door.client(LIVEKIT) as client:
            await client.send(text=" ", context_id="c1", voice_settings={"speed": 2.0, "stability": 0.5})
            await client.send(text=ONE, context_id="c1")
            await end(client)
            heard = (await client.until_final("c1"))["c1"]
            await client.send(text=" ", context_id="c2", voice_settings={"speed": 9})
            assert "speed" in (await client.receive())["error"]
    assert len(samples_of(heard)) == 50 * 960
    last = alignments_of(heard)[-1]
    assert last["charStartTimesMs"][-1] + last["charDurationsMs"][-1] == 2000
