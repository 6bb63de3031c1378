"""The Wyoming dialect as Home Assistant speaks it, through the protocol's own client."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeVoice,
)

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.access.connections import ConnectionLimits, Connections
from gateway.voices.registry import NamedVoice
from servicekit.clock import SystemClock
from tests.gateway.doors.wyoming_door import ANY_PORT, Heard, ask, listen, opened_wyoming
from tests.gateway.fakes import UNPACED, FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
TOKENS = 30
PCM_BYTES = TOKENS * 960 * 2
WHOLE = ["audio-start", "audio-chunk", "audio-stop"]
ONE, TWO = "This is the first sentence of it.", "And here comes the second one, longer."


@pytest.mark.parametrize(
    ("languages", "listed"),
    [((), [["de-DE"], ["en"]]), (("zh", "en"), [["zh", "en"], ["zh", "en"]])],
    ids=["the voices'", "the operator's"],
)
async def test_describe_lists_the_voices_with_languages_and_streaming(
    voices: Voices, languages: tuple[str, ...], listed: list[list[str]]
) -> None:
    settings = replace(ANY_PORT, languages=languages)
    async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices, settings) as door, door.client() as client:
        await ask(client, Describe())
        event = (await listen(client, "info")).events[0]
    (program,) = Info.from_event(event).tts
    assert (program.name, program.installed, program.supports_synthesize_streaming) == ("cosydit", True, True)
    assert [(voice.name, voice.installed) for voice in program.voices] == [("anna", True), ("default", True)]
    assert [voice.languages for voice in program.voices] == listed
    assert program.voices[0].description == "anna: A woman, warm and quick, German."


async def test_a_whole_text_is_spoken_in_the_voice_that_was_named(voices: Voices) -> None:
    llm, token2wav = FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav()
    async with opened_wyoming(llm, token2wav, voices) as door, door.client() as client:
        await ask(client, Synthesize(ONE, SynthesizeVoice("anna")))
        heard = await listen(client, "audio-stop")
    assert heard.kinds == WHOLE
    assert heard.events[0].data == {"rate": 24000, "width": 2, "channels": 1, "timestamp": None}
    assert np.frombuffer(heard.pcm, "<i2").tolist() == [16383] * (TOKENS * 960)
    assert llm.utterances[0].reference_text == "I am anna."


async def test_audio_comes_while_the_text_is_still_written_and_the_repeated_text_is_left_out(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(TOKENS))
    async with opened_wyoming(llm, FakeToken2Wav(), voices) as door, door.client() as client:
        await ask(client, SynthesizeStart(), *(SynthesizeChunk(f"{word} ") for word in f"{ONE} {TWO}".split()))
        first = await listen(client, "audio-chunk")
        # Home Assistant repeats the whole text for servers that can't take it in pieces.
        await ask(client, Synthesize(f"{ONE} {TWO}"), SynthesizeStop())
        rest = await listen(client, "synthesize-stopped")
    assert (first.kinds, rest.kinds) == (WHOLE[:2], [*WHOLE[1:], "synthesize-stopped"])
    assert len(first.pcm + rest.pcm) == len(llm.utterances) * PCM_BYTES
    assert "".join(utterance.text for utterance in llm.utterances).split() == f"{ONE} {TWO}".split()


async def test_requests_of_one_connection_are_answered_in_order_and_pings_at_once(voices: Voices) -> None:
    gate = asyncio.Event()
    llm = FakeLLM(speech_deltas(TOKENS), gate=gate)
    async with opened_wyoming(llm, FakeToken2Wav(), voices) as door, door.client() as client:
        await ask(client, Synthesize(ONE), Ping("there?"), SynthesizeStart(), SynthesizeChunk(TWO), SynthesizeStop())
        pong = (await listen(client, "pong")).events[0]
        gate.set()
        heard = await listen(client, "synthesize-stopped")
    assert pong.data == {"text": "there?"}
    assert heard.kinds == [*WHOLE, *WHOLE, "synthesize-stopped"]


async def test_a_stream_without_anything_to_say_still_ends(voices: Voices) -> None:
    async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices) as door, door.client() as client:
        await ask(client, SynthesizeStart(), SynthesizeChunk("  "), SynthesizeStop())
        heard = await listen(client, "synthesize-stopped")
    assert heard.kinds == ["audio-start", "audio-stop", "synthesize-stopped"]


async def test_unknown_events_are_dropped(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(TOKENS))
    async with opened_wyoming(llm, FakeToken2Wav(), voices) as door, door.client() as client:
        await client.write_event(Event("select-program", {"name": "cosydit"}))
        await client.write_event(Event("run-pipeline", payload=b"\0" * 5000))
        await ask(client, Synthesize(ONE))
        assert (await listen(client, "audio-stop")).kinds == WHOLE


async def refused(door_client: AsyncTcpClient, *events: Event) -> Heard:
    """Send events and return all that comes until the server closes."""
    for event in events:
        await door_client.write_event(event)
    return await listen(door_client)


def event_of(kind: str, **data: object) -> Event:
    return Event(kind, data)


@pytest.mark.parametrize(
    ("event", "code", "told"),
    [
        (event_of("synthesize", text=" "), "invalid_text", "empty"),
        (event_of("synthesize"), "invalid_request", "lacks its text"),
        (event_of("synthesize", text="Hi.", voice={"name": "nobody"}), "voice_not_found", "'anna'"),
        (event_of("synthesize", text="Hi.", voice="anna"), "invalid_request", "no object"),
        (event_of("synthesize", text="Hi.", voice={"name": 7}), "invalid_request", "strings"),
        (event_of("synthesize", text="Hi.", voice={"language": "?"}), "invalid_request", "BCP 47"),
        (event_of("synthesize", text="Hi.", text_format="latex"), "invalid_request", "text or ssml"),
        (event_of("synthesize-start", voice={"name": "nobody"}), "voice_not_found", "'anna'"),
        (event_of("synthesize-chunk", text="Hi."), "invalid_request", "synthesize-start first"),
        (event_of("synthesize-stop"), "invalid_request", "synthesize-start first"),
    ],
    ids=lambda value: value.type if isinstance(value, Event) else None,
)
async def test_a_mistake_is_told_and_ends_the_connection(voices: Voices, event: Event, code: str, told: str) -> None:
    async with opened_wyoming(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door, door.client() as client:
        heard = await refused(client, event)
    assert heard.kinds == ["error"]
    assert heard.error.code == code and told in heard.error.text


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n",
        b"[1]\n",
        b"{}\n",
        b'{"type": "describe", "data": [1]}\n',
        b'{"type": "describe", "data_length": "x"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"type": "describe", "data_length": 99999999999}\n',
        b'{"type": "describe", "payload_length": 99999999999}\n',
        b"x" * 3_000_000,
    ],
    ids=range(10),
)
async def test_what_is_no_event_is_refused_and_not_kept(voices: Voices, raw: bytes) -> None:
    async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(raw)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert b'"type": "error"' in answer


async def test_what_was_asked_for_before_a_mistake_is_spoken(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(TOKENS))
    async with opened_wyoming(llm, FakeToken2Wav(), voices) as door, door.client() as client:
        heard = await refused(client, Synthesize(ONE).event(), event_of("synthesize-stop"))
    assert heard.kinds == [*WHOLE, "error"] and len(heard.pcm) == PCM_BYTES


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(voices: Voices) -> None:
    rng = random.Random(7)
    async with opened_wyoming(FakeLLM(speech_deltas(100)), FakeToken2Wav(), voices) as door:

        async def leave_early() -> None:
            async with door.client() as client:
                messages = [SynthesizeStart(), SynthesizeChunk(f"{ONE} "), SynthesizeChunk(TWO), SynthesizeStop()]
                await ask(client, *messages[: rng.randrange(5)])
                await asyncio.sleep(rng.random() / 50)

        await asyncio.gather(*(leave_early() for _ in range(40)))
        await door.until_idle()
        async with door.client() as client:
            await ask(client, Synthesize(ONE))
            assert len((await listen(client, "audio-stop")).pcm) == 100 * 960 * 2


async def test_a_reader_who_stands_still_is_given_up(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(25 * 3600, per_delta=50))
    async with opened_wyoming(llm, FakeToken2Wav(), voices, limits=replace(UNPACED, reader_timeout_s=0.3)) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port, limit=1024)
        writer.write(b'{"type": "synthesize", "data": {"text": "Hello."}}\n')
        await reader.readline()
        while not door.token2wav.open_streams:
            await asyncio.sleep(0.01)
        await door.until_idle()
        writer.close()


async def test_an_idle_connection_is_closed(voices: Voices) -> None:
    settings = replace(ANY_PORT, idle_timeout_s=0.1)
    llm = FakeLLM(speech_deltas(TOKENS))
    async with opened_wyoming(llm, FakeToken2Wav(), voices, settings) as door, door.client() as client:
        await ask(client, SynthesizeStart(), SynthesizeChunk("and"))
        heard = await listen(client)
    assert len(heard.pcm) == PCM_BYTES, "what had come is spoken"
    assert "no event came for 0.1 seconds" in heard.error.text


async def test_requests_that_pile_up_are_refused(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(TOKENS), gate=asyncio.Event())
    limits = replace(UNPACED, max_contexts=2)
    async with opened_wyoming(llm, FakeToken2Wav(), voices, limits=limits) as door, door.client() as client:
        await ask(client, *(Synthesize(ONE) for _ in range(4)))
        while not llm.running:
            await asyncio.sleep(0.01)
        llm.gate.set()  # type: ignore[union-attr]
        heard = await listen(client)
    assert "which is the limit" in heard.error.text and heard.kinds[:3] == WHOLE


async def test_too_many_connections_are_refused(voices: Voices) -> None:
    access = Access(None, CallerLimits(), SystemClock(), connections=Connections(ConnectionLimits(connections=2)))
    async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices, access=access) as door, door.client() as first:
        await ask(first, SynthesizeStart(), Ping())
        await listen(first, "pong")
        async with door.client() as second:
            error = (await listen(second)).error
    assert (error.code, "connections are in use" in error.text) == ("overloaded", True)


async def test_the_limits_of_an_address_hold_here_too(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(TOKENS), gate=asyncio.Event(), ungated=20)
    access = Access(None, CallerLimits(streams=1), SystemClock())
    async with opened_wyoming(llm, FakeToken2Wav(), voices, access=access) as door:
        async with door.client() as first, door.client() as second:
            await ask(first, Synthesize(ONE))
            await listen(first, "audio-chunk")
            await ask(second, Synthesize(TWO))
            error = (await listen(second)).error
    assert isinstance(error, Error) and error.code == "stream_limit_reached"
