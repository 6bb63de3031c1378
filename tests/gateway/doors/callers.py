"""A caller at every door: says a text with the fields that its dialect has for a wish, and tells what it heard."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc
from websockets.asyncio.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.event import Event

from tests.gateway.access.door import Door
from tests.gateway.doors import grpc_door, wyoming_door
from tests.gateway.doors.http_door import AUTO, SINGLE, STREAM, Client, alignments_of, end, samples_of
from tests.gateway.speaking import audio_of, events_of

ELEVENLABS = "/v1/text-to-speech/default"
_QUERIES = {"enable_ssml_parsing", "model_id"}
"""Wishes that ElevenLabs' sockets have in their address."""


@dataclass
class Heard:
    """What a caller got for a text."""

    pcm: bytes = b""
    told: str = ""
    """Headers, messages and metadata, as a text."""
    starts_s: dict[str, float] = field(default_factory=dict)
    """When words begin, where the door tells."""

    @property
    def samples(self) -> np.ndarray:  # type: ignore[type-arg]
        return np.frombuffer(self.pcm, "<i2")


Caller = Callable[..., Awaitable[Heard]]


def _word_starts(characters: Iterable[str], starts_s: Iterable[float]) -> dict[str, float]:
    text, times = "".join(characters), list(starts_s)
    return {word.group(): times[word.start()] for word in re.finditer(r"\w+", text)}


def _of_http(answer: httpx.Response) -> Heard:
    if answer.is_error:
        return Heard(told=f"{answer.headers} {answer.text}")
    return Heard(answer.content, str(answer.headers))


async def openai(door: Door, text: str, **fields: Any) -> Heard:
    return _of_http(await door.speak(input=text, **fields))


async def openai_events(door: Door, text: str, **fields: Any) -> Heard:
    answer = await door.speak(input=text, stream_format="sse", word_timestamps=True, **fields)
    if answer.is_error:
        return _of_http(answer)
    events = events_of(answer.content)
    words = [word for event in events for word in event.get("words", ())]
    starts_s = {word["word"].strip("."): word["start_ms"] / 1000 for word in words}
    return Heard(audio_of(events), f"{answer.headers} {events[-1]}", starts_s)


async def elevenlabs(door: Door, text: str, **fields: Any) -> Heard:
    return _of_http(
        await door.http.post(ELEVENLABS, json={"text": text, **fields}, params={"output_format": "pcm_24000"})
    )


async def elevenlabs_timed(door: Door, text: str, **fields: Any) -> Heard:
    path, query = f"{ELEVENLABS}/stream/with-timestamps", {"output_format": "pcm_24000"}
    answer = await door.http.post(path, json={"text": text, **fields}, params=query)
    if answer.is_error:
        return _of_http(answer)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    timed = [line["alignment"] for line in lines if line["alignment"]]
    characters = [character for each in timed for character in each["characters"]]
    starts_s = [start_s for each in timed for start_s in each["character_start_times_seconds"]]
    pcm = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    return Heard(pcm, str(answer.headers), _word_starts(characters, starts_s))


@asynccontextmanager
async def _socket(door: Door, path: str, fields: dict[str, Any]) -> AsyncIterator[Client]:
    query = "".join(f"&{name}={str(value).lower()}" for name, value in fields.items() if name in _QUERIES)
    async with connect(f"ws{door.url.removeprefix('http')}{path}{query}", proxy=None) as connection:
        yield Client(connection)


def _of_elevenlabs(messages: list[dict[str, Any]]) -> Heard:
    timed = alignments_of(messages)
    characters = [character for each in timed for character in each["chars"]]
    starts_s = [start_ms / 1000 for each in timed for start_ms in each["charStartTimesMs"]]
    pcm = np.array(samples_of(messages), "<i2").tobytes()
    told = [{name: value for name, value in each.items() if name != "audio"} for each in messages]
    return Heard(pcm, json.dumps(told, ensure_ascii=False), _word_starts(characters, starts_s))


async def elevenlabs_many(door: Door, text: str, **fields: Any) -> Heard:
    """The socket of many contexts, in auto mode."""
    async with _socket(door, f"{AUTO}&sync_alignment=true", fields) as client:
        first = {name: value for name, value in fields.items() if name not in _QUERIES}
        await client.send(text=" ", context_id="c1", **first)
        await client.send(text=text, context_id="c1")
        await end(client)
        return _of_elevenlabs((await client.until_final("c1"))["c1"])


async def elevenlabs_one(door: Door, text: str, **fields: Any) -> Heard:
    """The socket of one text, which comes in pieces."""
    async with _socket(door, f"{SINGLE}&sync_alignment=true", fields) as client:
        await client.send(text=" ", **{name: value for name, value in fields.items() if name not in _QUERIES})
        for at in range(0, len(text), 5):
            await client.send(text=text[at : at + 5])
        await client.send(text="")
        return _of_elevenlabs((await client.until_closed())[1])


async def sentences(door: Door, text: str, **fields: Any) -> Heard:
    """The socket of sentences, whose times are within each."""
    config = {"type": "session.config", "response_format": "pcm", "stream_audio": True, "word_timestamps": True}
    heard, told = Heard(), list[dict[str, Any]]()
    async with _socket(door, STREAM, {}) as client:
        await client.send(**config, **fields)
        await client.send(type="input.text", text=text)
        await client.send(type="input.done")
        while not told or told[-1]["type"] not in ("error", "session.done"):
            told.append(await client.receive())
    before_s = 0.0
    for message in told:
        heard.pcm += base64.b64decode(message.pop("audio_b64", ""))
        for word in message.get("timestamps") or ():
            heard.starts_s[word["word"].strip(".")] = before_s + word["start_ms"] / 1000
        if message["type"] == "audio.done":
            before_s = len(heard.pcm) / 48_000
    heard.told = json.dumps(told, ensure_ascii=False)
    return heard


async def _of_grpc(call: Any, hear: Callable[[Any], Awaitable[tuple[bytes, str, dict[str, float]]]]) -> Heard:
    try:
        pcm, told, starts_s = await hear(call)
        metadata = [dict(await call.initial_metadata() or ()), dict(await call.trailing_metadata() or ())]
        return Heard(pcm, f"{told} {metadata}", starts_s)
    except grpc.aio.AioRpcError as error:
        return Heard(told=f"{error.code()} {error.details()} {dict(error.trailing_metadata() or ())}")


async def _hear_ours(call: Any) -> tuple[bytes, str, dict[str, float]]:
    heard = await grpc_door.listen(call)
    timed = [each for audio in heard.audio for each in audio.characters]
    starts_s = _word_starts([each.character for each in timed], [each.start_s for each in timed])
    return heard.content, str(heard.messages[0]), starts_s


async def ours(door: Door, text: str, **config: Any) -> Heard:
    request = tts_service_pb2.SynthesizeRequest(text=text, config=config)
    return await _of_grpc(tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel).Synthesize(request), _hear_ours)


async def ours_streamed(door: Door, text: str, **config: Any) -> Heard:
    async def hear(call: Any) -> tuple[bytes, str, dict[str, float]]:
        await call.write(grpc_door.say(config=config))
        started = await call.read()  # a refusal comes now; gRPC's client must not be sending when it does
        await call.write(grpc_door.say(text=text))
        await call.done_writing()
        pcm, _, starts_s = await _hear_ours(call)
        return pcm, str(started), starts_s

    return await _of_grpc(tts_service_pb2_grpc.TextToSpeechServiceStub(door.channel).StreamingSynthesize(), hear)


def _riva_request(text: str, fields: dict[str, Any]) -> Any:
    usual = {"encoding": "LINEAR_PCM", "sample_rate_hz": 24000, "language_code": "en-US"}
    return riva_tts_pb2.SynthesizeSpeechRequest(text=text, enable_word_time_offsets=True, **usual, **fields)


def _of_riva(answers: list[Any]) -> tuple[bytes, str, dict[str, float]]:
    words = [word for each in answers for word in each.meta.words]
    starts_s = {word.word.strip("."): word.start_time / 1000 for word in words}
    return b"".join(each.audio for each in answers), "", starts_s


async def riva(door: Door, text: str, **fields: Any) -> Heard:
    async def hear(call: Any) -> tuple[bytes, str, dict[str, float]]:
        return _of_riva([await call])

    stub = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(door.channel)
    return await _of_grpc(stub.Synthesize(_riva_request(text, fields)), hear)


async def riva_online(door: Door, text: str, **fields: Any) -> Heard:
    async def hear(call: Any) -> tuple[bytes, str, dict[str, float]]:
        return _of_riva((await grpc_door.listen(call)).messages)

    stub = riva_tts_pb2_grpc.RivaSpeechSynthesisStub(door.channel)
    return await _of_grpc(stub.SynthesizeOnline(iter([_riva_request(text, fields)])), hear)


async def _of_wyoming(door: Door, *events: Event) -> Heard:
    async with AsyncTcpClient("127.0.0.1", door.ports["Wyoming"]) as client:
        for event in events:
            await client.write_event(event)
        heard = await wyoming_door.listen(client, "audio-stop")
    return Heard(heard.pcm, str([event.data for event in heard.events]))


async def wyoming(door: Door, text: str, **fields: Any) -> Heard:
    return await _of_wyoming(door, Event("synthesize", {"text": text, **fields}))


async def wyoming_streamed(door: Door, text: str, **fields: Any) -> Heard:
    chunk = Event("synthesize-chunk", {"text": text})
    return await _of_wyoming(door, Event("synthesize-start", fields), chunk, Event("synthesize-stop"))


OPENAI, SENTENCES, OURS, RIVA = (openai, openai_events), (sentences,), (ours, ours_streamed), (riva, riva_online)
OVER_HTTP = (elevenlabs, elevenlabs_timed)
OVER_SOCKETS = (elevenlabs_many, elevenlabs_one)
WYOMING = (wyoming, wyoming_streamed)
CALLERS: tuple[Caller, ...] = (*OPENAI, *OVER_HTTP, *OVER_SOCKETS, *SENTENCES, *OURS, *RIVA, *WYOMING)
at_every_door = pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: str(caller.__name__))


def wishes(**of_kinds: dict[str, Any]) -> Any:
    """Parametrise by callers and the fields with which each has the same wish; the kinds are OPENAI and so on."""
    kinds = {"openai": OPENAI, "elevenlabs": (*OVER_HTTP, *OVER_SOCKETS), "sentences": SENTENCES}
    kinds |= {"ours": OURS, "riva": RIVA}
    rows = [(caller, fields) for kind, fields in of_kinds.items() for caller in kinds[kind]]
    return pytest.mark.parametrize(("caller", "fields"), rows, ids=[caller.__name__ for caller, _ in rows])
