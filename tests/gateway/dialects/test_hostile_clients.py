"""Clients that send anything, read nothing, or leave at any moment: nothing is left behind, and neighbours go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from gateway.dialects.json_socket import JsonSocket, SocketClosedError
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import (
    AUTO,
    MAX_MESSAGE_BYTES,
    ONE,
    SINGLE,
    STREAM,
    Client,
    Door,
    opened_door,
    text_of,
)
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

pytestmark = pytest.mark.slow

Voices = list[NamedVoice]
SOCKETS = [pytest.param(path, id=name) for name, path in (("multi", AUTO), ("single", SINGLE), ("stream", STREAM))]
ATTACKS, MESSAGES_EACH, MESSAGES_A_CONNECTION = 20, 50, 5
FIELDS = (
    "text context_id contextId flush close_context close_socket voice_settings generation_config type session "
    "voice response_format stream_audio split_granularity ref_audio speed seed language word_timestamps"
).split()
KINDS = ("session.config", "input.text", "input.done", "input.cancel", "session.close", "nonsense")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(KINDS)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
)
objects = st.dictionaries(st.sampled_from(FIELDS), values, max_size=5)
typed = st.builds(lambda kind, fields: {**fields, "type": kind}, st.sampled_from(KINDS), objects)
texts = st.one_of(
    st.text(max_size=20),
    st.one_of(values, objects, typed).map(json.dumps),
    st.sampled_from(
        ["", "{", "[" * 5000, '{"text": "\\ud800"}', '{"text": 1e999}', "9" * 5000, "x" * MAX_MESSAGE_BYTES]
    ),
)
junk: st.SearchStrategy[str | bytes] = texts | st.binary(max_size=20)


@pytest.mark.parametrize("path", SOCKETS)
def test_a_thousand_malformed_messages_leave_the_process_and_a_neighbour_well(voices: Voices, path: str) -> None:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def open_all() -> tuple[Door, Client]:
        door = await stack.enter_async_context(opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices))
        return door, await stack.enter_async_context(door.client(AUTO))

    async def attacked(door: Door, neighbour: Client, messages: list[str | bytes]) -> None:
        await neighbour.send(text=ONE, context_id="c1")
        for at in range(0, MESSAGES_EACH, MESSAGES_A_CONNECTION):
            async with door.client(path) as attacker:
                await _throw(attacker, messages[at : at + MESSAGES_A_CONNECTION])
        await neighbour.send(context_id="c1", flush=True)
        await neighbour.send(context_id="c1", close_context=True)
        assert text_of((await neighbour.until_final("c1"))["c1"]) == f"{ONE} "
        await door.until_idle()

    try:
        door, neighbour = loop.run_until_complete(open_all())

        @settings(max_examples=ATTACKS, deadline=None, derandomize=True, database=None)
        @given(st.lists(junk, min_size=MESSAGES_EACH, max_size=MESSAGES_EACH))
        def attack(messages: list[str | bytes]) -> None:
            loop.run_until_complete(attacked(door, neighbour, messages))

        attack()
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()


async def _throw(attacker: Client, messages: list[str | bytes]) -> None:
    """Send all, reading what comes back, until the server has had enough."""
    reading = asyncio.create_task(_read_all(attacker))
    with suppress(ConnectionClosed):
        for message in messages:
            await attacker.connection.send(message)
    await attacker.connection.close()
    await reading


async def _read_all(client: Client) -> None:
    with suppress(ConnectionClosed):
        while True:
            await client.connection.recv()


async def _speak_multi(client: Client) -> None:
    await client.send(text=ONE, context_id="c1", flush=True)
    await client.send(context_id="c1", flush=True)
    await client.send(context_id="c1", close_context=True)


async def _speak_single(client: Client) -> None:
    await client.send(text=ONE, flush=True)
    await client.send(text="")


async def _speak_stream(client: Client) -> None:
    await client.send(type="session.config", stream_audio=True)
    await client.send(type="input.text", text=ONE)
    await client.send(type="input.done")


SPEAKERS = [
    pytest.param(AUTO, _speak_multi, id="multi"),
    pytest.param(SINGLE, _speak_single, id="single"),
    pytest.param(STREAM, _speak_stream, id="stream"),
]
Speak = Callable[[Client], Any]


@pytest.mark.parametrize(("path", "speak"), SPEAKERS)
async def test_a_reader_who_stops_reading_stops_both_services(voices: Voices, path: str, speak: Speak) -> None:
    llm, token2wav = FakeLLM(speech_deltas(100_000)), FakeToken2Wav()
    async with opened_door(llm, token2wav, voices) as door:
        async with door.client(path, max_queue=1, compression=None) as client:
            await speak(client)
            await door.until(lambda: bool(token2wav.streams and token2wav.streams[-1].chunks))
            made = -1
            while made != (made := len(token2wav.streams[-1].chunks)):
                await asyncio.sleep(0.1)
            assert llm.running == 1, "the LLM waits too"
            client.connection.transport.abort()
        await door.until_idle()


@pytest.mark.parametrize(("path", "speak"), SPEAKERS)
async def test_a_reader_who_stands_still_is_given_up(voices: Voices, path: str, speak: Speak) -> None:
    llm = FakeLLM(speech_deltas(100_000))
    async with opened_door(llm, FakeToken2Wav(), voices, send_timeout_s=0.2) as door:
        async with door.client(path, max_queue=1, compression=None) as client:
            await speak(client)
            await door.until(lambda: llm.running > 0)
            await door.until_idle()
            client.connection.transport.abort()


@pytest.mark.parametrize("is_held", [False, True], ids=["while audio comes", "before any audio"])
@pytest.mark.parametrize(("path", "speak"), SPEAKERS)
async def test_a_client_that_vanishes_frees_everything(voices: Voices, path: str, speak: Speak, is_held: bool) -> None:
    llm, token2wav = FakeLLM(speech_deltas(5000)), FakeToken2Wav(is_held=is_held)
    async with opened_door(llm, token2wav, voices) as door:
        for seen in range(3):
            async with door.client(path) as client:
                await speak(client)
                await door.until(lambda: token2wav.open_streams > 0)
                for _ in range(0 if is_held else seen):
                    await client.connection.recv()
                client.connection.transport.abort()
            await door.until_idle()


async def test_a_message_that_is_too_long_is_refused_alone(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(30)), FakeToken2Wav(), voices) as door, door.client(AUTO) as client:
        await client.send(text="x" * MAX_MESSAGE_BYTES, context_id="c1")
        assert str(MAX_MESSAGE_BYTES) in (await client.receive())["error"]
        await _speak_multi(client)
        assert text_of((await client.until_final("c1"))["c1"]) == f"{ONE} "


async def test_the_server_stops_in_mid_speech_without_a_trace(voices: Voices) -> None:
    llm, token2wav = FakeLLM(speech_deltas(5000)), FakeToken2Wav()
    async with AsyncExitStack() as clients:
        async with opened_door(llm, token2wav, voices) as door:
            client = await clients.enter_async_context(door.client(AUTO))
            clients.callback(client.connection.transport.abort)
            await _speak_multi(client)
            await client.receive()
        assert (llm.running, token2wav.open_streams) == (0, 0)


async def test_a_connection_that_the_server_under_us_has_closed_is_closed() -> None:
    async def send(message: Any) -> None:
        raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'")

    socket = JsonSocket(cast(Any, SimpleNamespace(send=send)), MAX_MESSAGE_BYTES, 1.0)
    for _ in range(2):
        with pytest.raises(SocketClosedError):
            await socket.send({})
