"""No field of a message takes the event loop long, at any door: the worst values of all fields of all models.

Work is counted, as calls of functions, and not timed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from riva.proto import riva_tts_pb2
from starlette.requests import Request
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.audio import AudioFormat
from gateway.dialects.answers import MAX_VALUES, read_body
from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.elevenlabs import wire as elevenlabs_wire
from gateway.dialects.grpc import messages as grpc_messages
from gateway.dialects.grpc import riva_request, tts_config
from gateway.dialects.json_socket import JsonSocket
from gateway.dialects.openai import request as openai_request
from gateway.dialects.speech_ws import wire as speech_wire
from gateway.dialects.wyoming.wire import EventReader, EventStream
from gateway.errors import GatewayError, InvalidRequestError
from gateway.speech.speaker import Speaker
from gateway.voices.draft import MAX_PROMPT_BYTES
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.fakes import FakeLLM, FakeToken2Wav

Voices = list[NamedVoice]

MAX_BYTES = 1024 * 1024
MANY = 20_000
MAX_CALLS = 40_000
"""Calls of functions, in Python or C, that reading one message may take; 500 right words take about 10,000."""


def calls_of(work: Callable[[], Any]) -> int:
    """Return how many functions are called until the work ends or is refused."""
    calls = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    except ValidationError:
        pass
    except GatewayError as error:
        assert len(str(error)) < 4000, "an error does not repeat all that came"
    finally:
        sys.setprofile(before)
    return calls


@cache
def worst_json() -> dict[str, str]:
    """Return values that cost a parser, or what comes behind it, most."""
    few = MAX_VALUES // 2
    return {
        "empty lists": f"[{'[],' * MANY}[]]",
        "numbers": f"[{'0,' * MANY}0]",
        "names": json.dumps(["a"] * MANY),
        "words": json.dumps({f"w{number}": "a" for number in range(MANY)}),
        "wrong words": json.dumps({f"w{number}": number for number in range(few)}),
        "long words": json.dumps({f"{number:04d}{'a' * 196}": "b" * 400 for number in range(few)}),
        "locators": json.dumps([{"pronunciation_dictionary_id": "a"}] * few),
        "deep": "[" * MANY,
        "digits": "9" * MAX_BYTES,
        "text": json.dumps("a" * MAX_BYTES),
        "quotes": json.dumps('"\\' * MANY),
        "blanks": json.dumps(" a" * MANY),
    }


def read_openai(text: str) -> None:
    openai_request.read_request(text.encode(), AudioFormat.WAV, "r")


def read_elevenlabs(text: str) -> None:
    elevenlabs_http.read_speech(text.encode(), {}, "v")


def read_socket(parse: Callable[[dict[str, Any]], object], text: str) -> None:
    parse(JsonSocket(cast(Any, None), 4 * MAX_BYTES, 1)._parse(text))


def read_config(message: dict[str, Any]) -> None:
    config = speech_wire.parse_config(message)
    assert config.speaker and config.text_options()


JSON_DOORS: dict[str, tuple[type[BaseModel], Callable[[str], object], dict[str, Any]]] = {
    "openai": (openai_request.SpeechBody, read_openai, {"model": "m", "input": "a", "voice": "v"}),
    "elevenlabs": (elevenlabs_http.ElevenLabsSpeechBody, read_elevenlabs, {"text": "a"}),
    "elevenlabs socket": (
        elevenlabs_wire.ClientMessage,
        lambda text: read_socket(elevenlabs_wire.parse_message, text),
        {"text": "a"},
    ),
    "speech socket": (
        speech_wire.ConfigFields,
        lambda text: read_socket(read_config, text),
        {"type": "session.config"},
    ),
}


@pytest.mark.parametrize(("size", "at_once"), [(1000, 3), (MAX_BYTES, 1)])
async def test_of_large_bodies_one_is_parsed_in_a_turn_of_the_event_loop(
    voices: Voices, size: int, at_once: int
) -> None:
    turn, parsed, app = 0, Counter[int](), SimpleNamespace(state=SimpleNamespace(host=SimpleNamespace()))
    app.state.host.pipeline = Speaker(FakeLLM([]), FakeToken2Wav(), VoiceRegistry(FakeToken2Wav(), voices))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(size)}

    async def read() -> None:
        request = Request({"type": "http", "method": "POST", "headers": [], "app": app}, receive)
        await read_body(request, MAX_BYTES, "input", lambda raw: parsed.update([turn]))

    reading = asyncio.gather(read(), read(), read())
    while not reading.done():
        await asyncio.sleep(0)
        turn += 1
    assert max(parsed.values()) == at_once and parsed.total() == 3


@pytest.mark.parametrize("door", JSON_DOORS)
def test_the_worst_json_of_every_field_takes_little_work(door: str) -> None:
    model, read, right = JSON_DOORS[door]
    for name in (*model.model_fields, "unknown"):
        start = json.dumps({key: value for key, value in right.items() if key != name})[:-1]
        for kind, value in worst_json().items():
            message = f'{start}{", " if len(start) > 1 else ""}"{name}": {value}}}'
            assert calls_of(lambda message=message: read(message)) < MAX_CALLS, (name, kind)


def test_json_of_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("parsed"))
    for kind in ("empty lists", "numbers", "names", "words", "deep"):
        with pytest.raises(GatewayError, match="more than 2000 values"):
            read_socket(lambda message: message, worst_json()[kind])


@pytest.mark.parametrize("in_line", [True, False])
async def test_a_wyoming_event_of_many_values_is_refused_before_it_is_parsed(in_line: bool) -> None:
    reader, many = EventReader(MAX_BYTES), worst_json()["empty lists"].encode()
    line = b'{"type":"synthesize","data":%b}' % many if in_line else b'{"type":"a","data_length":%d}' % len(many)
    reader.feed_data(line + b"\n" + many)
    with pytest.raises(GatewayError, match="more than 2000 values"):
        await EventStream(reader, cast(Any, None), 1).receive()


def fields_of(kind: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the path to every field of a message and of those in it."""
    for field in kind.fields:
        yield (*path, field)
        if field.message_type is not None and len(path) < 3:
            yield from fields_of(field.message_type, (*path, field))


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def within(path: tuple[FieldDescriptor, ...], value: bytes) -> bytes:
    """Encode a field's bytes, and the messages around it."""
    for field in reversed(path):
        value = varint(field.number << 3 | 2) + varint(len(value)) + value
    return value


class Unparsed:
    """Stands for a message class: its messages are not to be parsed."""

    DESCRIPTOR: Descriptor

    @classmethod
    def FromString(cls, data: bytes) -> None:
        pytest.fail("parsed")


REQUESTS = [
    tts_service_pb2.SynthesizeRequest,
    tts_service_pb2.StreamingSynthesizeRequest,
    tts_service_pb2.ListVoicesRequest,
    riva_tts_pb2.SynthesizeSpeechRequest,
    riva_tts_pb2.RivaSynthesisConfigRequest,
]


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda each: str(each.__name__))
def test_a_grpc_message_of_many_or_long_values_is_refused_before_it_is_parsed(request_class: type[Message]) -> None:
    unparsed = type("Unparsed", (Unparsed,), {"DESCRIPTOR": request_class.DESCRIPTOR})
    parse = grpc_messages.forgiving(unparsed.FromString, MAX_BYTES)
    messages = [b"\x82\x7d\x00" * MANY]  # fields that are not known
    for path in fields_of(request_class.DESCRIPTOR):
        if path[-1].type == FieldDescriptor.TYPE_STRING:
            messages.append(within(path, b"a" * (MAX_BYTES + 1)))
        if path[-1].type == FieldDescriptor.TYPE_BYTES:
            messages.append(within(path, bytes(MAX_PROMPT_BYTES + 1)))
        messages.append(within(path[:-1], within(path[-1:], b"") * MAX_VALUES))
    for message in messages:
        assert isinstance(parse(message), InvalidRequestError)


WORDS = {f"{number:03d}{'a' * 197}": "b" * 400 for number in range(500)}
DICTIONARIES = {
    "commas": "," * MAX_BYTES,
    "words": ",".join(f"w{number}  a" for number in range(MANY)),
    "one entry": "a " * (MAX_BYTES // 2),
    "phonemes": ",".join(f"w{number}  {'ʃʊəmiː' * 60}" for number in range(500)),
    "arpabet": ",".join(f"w{number}  {'{@SH}{@OW1}' * 35}" for number in range(500)),
}


@pytest.mark.parametrize("dictionary", DICTIONARIES.values(), ids=DICTIONARIES)
def test_the_worst_dictionary_of_riva_takes_little_work(dictionary: str) -> None:
    asked = riva_tts_pb2.SynthesizeSpeechRequest(text="a", sample_rate_hz=24000, custom_dictionary=dictionary)
    read = riva_request.read_request
    assert calls_of(lambda: read(asked, lambda name: True, takes_phonemes=True)) < MAX_CALLS


def test_more_words_or_dictionaries_than_allowed_are_refused_before_rules_are_made_of_them() -> None:
    words = dict.fromkeys(map(str, range(600)), "b" * 400)
    for config in (speech_pb2.SpeechConfig(pronunciations=words), speech_pb2.SpeechConfig(lexicons=[{}] * 600)):
        assert calls_of(lambda config=config: tts_config.read_config(config)) < 1000


def test_as_many_words_as_allowed_are_read_at_every_door() -> None:
    parse = grpc_messages.forgiving(tts_service_pb2.SynthesizeRequest.FromString, MAX_BYTES)
    asked = parse(tts_service_pb2.SynthesizeRequest(config={"pronunciations": WORDS}).SerializeToString())
    assert len(tts_config.read_config(asked.config).speech.text_options.aliases) == len(WORDS)
    body = json.dumps({"model": "m", "input": '"Yes," she said. ' * 4000, "voice": "v", "pronunciations": WORDS})
    read_openai(body)
    read_socket(speech_wire.parse_config, json.dumps({"pronunciations": WORDS}))
