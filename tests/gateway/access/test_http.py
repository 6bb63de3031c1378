"""The guard of HTTP and WebSockets, before a real server with every dialect behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from functools import partial
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Route
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.access.caller import CallerLimits, note_caller
from gateway.access.settings import AccessSettings
from gateway.client import ClientError, speak_over_http
from gateway.voices.registry import NamedVoice
from servicekit.clock import SystemClock
from tests.gateway.access.door import (
    BEARER,
    ELEVENLABS,
    KEY,
    OTHER_KEY,
    SMALL,
    SPEECH,
    TLS,
    Door,
    keys,
    opened_door,
    recorded,
)
from tests.gateway.fakes import FakeLLM, speech_deltas

Voices = list[NamedVoice]
OPEN = ("/", "/docs", "/openapi.json", "/healthz", "/web/app.js")
SOCKETS = (
    "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&auto_mode=true",
    "/v1/text-to-speech/default/stream-input?output_format=pcm_24000",
    "/v1/audio/speech/stream",
)
APP = "https://app.example"


def address(route: Any) -> str:
    path: str = route.path
    return path.replace("{voice}", "default").replace("{model:path}", "cosydit")


def guarded_requests(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    """Every method of every route of HTTP that is not open."""
    named = [(route, address(route)) for route in routes if isinstance(route, Route)]
    return [(method, path) for route, path in named if path not in OPEN for method in sorted(route.methods or ())]


def socket(door: Door, path: str, **options: Any) -> connect:
    return connect(f"ws{door.url.removeprefix('http')}{path}", proxy=None, **options)


async def asked(door: Door, path: bytes) -> bytes:
    """Ask for a path as it is, which clients would shorten; return the first line of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(door.url).port)
    writer.write(b"GET " + path + b" HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n")[0]


async def until_closed(connection: Any) -> list[dict[str, Any]]:
    messages = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            messages.append(json.loads(await asyncio.wait_for(connection.recv(), 5)))
    return messages


async def test_every_route_refuses_without_a_key_in_the_shape_of_its_dialect(voices: Voices) -> None:
    async with opened_door(voices) as door:
        requests = guarded_requests(door.routes)
        for method, path in requests:
            answer = await door.http.request(method, path, headers={"authorization": "Bearer wrong"})
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                body = answer.json()
                prefixes = ("/v1/text-to-speech", "/v1/voices", "/v2/voices", "/v1/user")
                is_elevenlabs = path.startswith(prefixes)
                code = body["detail"]["status"] if is_elevenlabs else body["error"]["code"]
                assert code == "invalid_api_key"
        assert len(requests) > 12 and door.llm.utterances == []


@pytest.mark.slow
async def test_every_route_lets_a_known_key_in(voices: Voices) -> None:
    async with opened_door(voices) as door:
        for headers in (
            BEARER,
            ELEVENLABS,
            {"authorization": f"bEaReR  {KEY}"},
            {"authorization": "Basic x", **ELEVENLABS},
        ):
            for method, path in guarded_requests(door.routes):
                answer = await door.http.request(method, path, headers=headers)
                assert answer.status_code != 401, (method, path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/audio/speech", SPEECH, id="OpenAI"),
        pytest.param("/v1/audio/speech", {**SPEECH, "stream_format": "sse"}, id="OpenAI events"),
        pytest.param("/v1/text-to-speech/default?output_format=pcm_24000", {"text": "hello"}, id="ElevenLabs"),
        pytest.param(
            "/v1/text-to-speech/default/stream/with-timestamps?output_format=pcm_24000", {"text": "hello"}, id="timed"
        ),
    ],
)
async def test_a_dialect_speaks_until_the_audio_is_used_up_and_then_says_when(
    voices: Voices, path: str, body: dict[str, Any]
) -> None:
    async with opened_door(voices, AccessSettings(fixed_keys=keys("audio_s_per_day=1"))) as door:
        spoken = await door.http.post(path, json=body, headers=BEARER)
        assert spoken.status_code == 200 and len(spoken.content) >= 48_000
        await door.until_idle()
        refused = await door.http.post(path, json=body, headers=BEARER)
        assert refused.status_code == 429
        assert refused.headers["x-should-retry"] == "false"
        assert int(refused.headers["retry-after"]) == 24 * 3600 + 60
        assert "audio_limit_reached" in refused.text
        assert (await door.http.post(path, json=body, headers={"xi-api-key": OTHER_KEY})).status_code == 200


async def test_a_client_that_leaves_gives_its_stream_back(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=30)
    async with opened_door(voices, AccessSettings(fixed_keys=keys("streams=1")), llm) as door:
        async with door.http.stream("POST", "/v1/audio/speech", json=SPEECH, headers=BEARER) as speaking:
            await anext(speaking.aiter_raw())
            refused = await door.speak(BEARER)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "stream_limit_reached")
            assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
        await door.until_idle()
        assert llm.gate is not None
        llm.gate.set()
        assert (await door.speak(BEARER)).status_code == 200


async def test_probes_and_the_page_are_open_for_reading_only(voices: Voices) -> None:
    async with opened_door(voices) as door:
        for path in OPEN:
            assert (await door.http.get(path)).status_code == 200
            assert (await door.http.post(path)).status_code == 401
        for path in (b"//healthz", b"/healthz/", b"/web", b"/nowhere", b"/v1/", b"/caller?/healthz", b"/%2e/healthz"):
            assert (await door.http.get(httpx.URL(door.url).copy_with(raw_path=path))).status_code == 401, path
        for path in (b"/web/../caller", b"/web/%2e%2e/caller"):
            assert await asked(door, path) == b"HTTP/1.1 404 Not Found", path


async def test_without_keys_anyone_speaks_and_each_address_has_its_limits(voices: Voices) -> None:
    settings = AccessSettings(limits=keys("audio_s_per_day=1")[0].limits)
    async with opened_door(voices, settings) as door:
        assert (await door.http.get("/caller")).text == "127.0.0.1"
        assert (await door.speak()).status_code == 200
        await door.until_idle()
        assert (await door.speak(BEARER)).status_code == 429


async def test_the_caller_is_known_inside_and_its_key_nowhere(voices: Voices) -> None:
    record = logging.LogRecord("name", logging.INFO, "path", 1, "message", (), None)
    with recorded() as lines:
        async with opened_door(voices) as door:
            assert (await door.http.get("/caller", headers=BEARER)).text == "anna"
            assert (await door.http.get("/caller", headers={"xi-api-key": OTHER_KEY})).text == "bob"
            await door.speak(BEARER)
            await door.speak({"authorization": "Bearer sk-not-a-known-key"})
    assert note_caller(record) and record.__dict__["caller"] == "-"
    assert lines and not any("sk-" in line for line in lines)


async def test_our_own_client_sends_its_key(voices: Voices) -> None:
    heard: list[bytes] = []
    async with opened_door(voices) as door:
        speak = partial(speak_over_http, door.url, "hello", "default", heard.append, SystemClock(), 5.0)
        timing = await asyncio.to_thread(speak, api_key=KEY)
        assert (timing.audio_s, len(b"".join(heard))) == (1.0, 48_000)
        with pytest.raises(ClientError, match="401: no API key came"):
            await asyncio.to_thread(speak)


@pytest.mark.parametrize("path", SOCKETS)
async def test_a_socket_is_refused_at_the_handshake_without_a_key(voices: Voices, path: str) -> None:
    async with opened_door(voices) as door:
        for headers in ({}, {"xi-api-key": "wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                await socket(door, path, additional_headers=headers)
            assert refused.value.response.status_code == 401
            assert b"invalid_api_key" in (refused.value.response.body or b"")
        for headers in (BEARER, ELEVENLABS):
            async with socket(door, path, additional_headers=headers):
                pass


async def test_a_socket_is_no_stream_until_it_speaks_and_then_counts_as_its_caller(voices: Voices) -> None:
    settings = AccessSettings(fixed_keys=keys("streams=1 audio_s_per_day=1"))
    async with opened_door(voices, settings) as door:
        async with socket(door, SOCKETS[1], additional_headers=ELEVENLABS) as first:
            async with socket(door, SOCKETS[1], additional_headers=ELEVENLABS):
                assert door.access.ledger.streams("anna") == 0
            await first.send(json.dumps({"text": "Hello there. "}))
            await first.send(json.dumps({"text": ""}))
            assert sum(bool(message.get("audio")) for message in await until_closed(first))
        await door.until_idle()
        async with socket(door, SOCKETS[1], additional_headers=ELEVENLABS) as second:
            await second.send(json.dumps({"text": "Hello there. "}))
            await second.send(json.dumps({"text": ""}))
            refusal = (await until_closed(second))[-1]
            assert (refusal["error"], second.close_code) == ("audio_limit_reached", 1011)


async def test_foreign_pages_neither_send_forms_nor_open_sockets(voices: Voices) -> None:
    async with opened_door(voices, AccessSettings(allowed_origins=(APP,))) as door:
        for origin, status in ((door.url, 200), (APP, 200), ("https://evil.example", 403)):
            assert (await door.speak({"origin": origin})).status_code == status
        evil = {"origin": "http://evil.example", "host": "evil.example"}
        refused = await door.speak(evil)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
        for path in SOCKETS:
            with pytest.raises(InvalidStatus) as denied:
                await socket(door, path, origin="https://evil.example")
            assert denied.value.response.status_code == 403
            async with socket(door, path, origin=APP):
                pass


async def test_without_keys_only_this_machines_names_are_answered(voices: Voices) -> None:
    async with opened_door(voices, AccessSettings(allowed_hosts=("tts.example",))) as door:
        port = httpx.URL(door.url).port
        for host, status in (
            *((f"{name}:{port}", 200) for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]", "tts.example")),
            *(
                (host, 403)
                for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "[::")
            ),
        ):
            answer = await door.http.get("/v1/audio/voices", headers={"host": host})
            assert answer.status_code == status, (host, answer.text)
        assert (answer.json()["error"]["code"], "--allowed-host" in answer.text) == ("foreign_host", True)
        for path in SOCKETS:
            with pytest.raises(InvalidStatus) as denied:
                await connect(f"ws://evil.example:{port}{path}", proxy=None, host="127.0.0.1", port=port)
            assert denied.value.response.status_code == 403
    async with opened_door(voices) as door:
        assert (await door.http.get("/v1/audio/voices", headers={**BEARER, "host": "tts.example"})).status_code == 200


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
async def test_callers_say_where_they_come_from_only_through_a_trusted_proxy(
    voices: Voices, trusted: tuple[str, ...]
) -> None:
    settings = AccessSettings(limits=CallerLimits(audio_s_per_hour=1), trusted_proxies=trusted)
    async with opened_door(voices, settings) as door:
        answers = [await door.speak({"x-forwarded-for": f"192.0.2.{number}"}) for number in range(2)]
        assert [answer.status_code for answer in answers] == ([200, 200] if trusted else [200, 429])
        assert door.access.ledger.streams("127.0.0.1") == 0


async def test_browsers_of_listed_origins_may_ask_and_read_even_refusals(voices: Voices) -> None:
    ask = {"origin": APP, "access-control-request-method": "POST"}
    ask["access-control-request-headers"] = "authorization,xi-api-key,x-stainless-os"
    async with opened_door(voices, AccessSettings(fixed_keys=keys(), allowed_origins=(APP,))) as door:
        answer = await door.http.options("/v1/audio/speech", headers=ask)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
        assert answer.headers["access-control-allow-headers"] == ask["access-control-request-headers"]
        refused = await door.speak({"origin": APP})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, APP)
        foreign = await door.http.options("/v1/audio/speech", headers={**ask, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in foreign.headers
    async with opened_door(voices) as door:
        assert "access-control-allow-origin" not in (await door.http.options("/v1/audio/speech", headers=ask)).headers


async def test_what_is_too_large_is_refused_whatever_the_dialect(voices: Voices) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    async with opened_door(voices, AccessSettings(wire=SMALL)) as door:
        for path in ("/v1/audio/speech", "/v1/text-to-speech/default"):
            for content in (b" " * 2_000_000, pieces()):
                answer = await door.http.post(path, content=content)
                assert answer.status_code == 400 and "text_too_long" in answer.text, path
        headers = {"x-long": "x" * 1_000_000}
        assert (await door.http.get("/healthz", headers=headers)).status_code == 400
        async with socket(door, SOCKETS[1]) as connection:
            await connection.send("x" * 3000)
            await connection.wait_closed()
            assert connection.close_code == 1009
        assert (await door.speak()).status_code == 200


async def test_all_of_it_over_tls(voices: Voices) -> None:
    async with opened_door(voices, AccessSettings(fixed_keys=keys(), tls=TLS)) as door:
        assert door.url.startswith("https://")
        assert (await door.speak(BEARER)).status_code == 200
        assert (await door.speak()).status_code == 401
