"""The page over HTTP: types, caching, and the policy that keeps everything else out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from gateway.dialects.http.web_page import routes
from gateway.speech.request import DEFAULT_MAX_TEXT_CHARACTERS
from gateway.voices.registry import VoiceRegistry
from gateway.voices.store import VoiceLimits
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_voices_host, speech_deltas
from tests.gateway.voices.fakes import FakeVoiceMaker, make_store

TYPES = {
    "/": "text/html; charset=utf-8",
    "/web/style.css": "text/css; charset=utf-8",
    "/web/app.js": "text/javascript; charset=utf-8",
    "/web/recorder-worklet.js": "text/javascript; charset=utf-8",
    "/web/icon.svg": "image/svg+xml",
    "/web/settings.json": "application/json",
}


@asynccontextmanager
async def page_client(registry: VoiceRegistry | None = None) -> AsyncIterator[httpx.AsyncClient]:
    host = make_voices_host(registry or VoiceRegistry(FakeToken2Wav()))
    transport = httpx.ASGITransport(Starlette(routes=routes(lambda: host)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.mark.parametrize(("path", "media_type"), TYPES.items())
async def test_files_go_out_with_their_types_and_the_policy(path: str, media_type: str) -> None:
    async with page_client() as client:
        response = await client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, media_type)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not {"unsafe", "http:", "https:", "*"} & set(response.headers["content-security-policy"].split())
    assert "unsafe" not in response.headers["content-security-policy"]


async def test_a_browser_that_has_a_file_is_told_so_without_its_content() -> None:
    async with page_client() as client:
        first = await client.get("/web/app.js")
        again = await client.get("/web/app.js", headers={"if-none-match": first.headers["etag"]})
        other = await client.get("/web/style.css", headers={"if-none-match": first.headers["etag"]})
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert other.status_code == 200


async def test_head_tells_the_length_alone() -> None:
    async with page_client() as client:
        whole, head = await client.get("/"), await client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize("path", ["/web/", "/web/index.html", "/web/..%2fapp.py", "/web/x.js"])
async def test_nothing_else_is_served(path: str) -> None:
    async with page_client() as client:
        assert (await client.get(path)).status_code == 404


async def test_settings_say_whether_voices_can_be_created(tmp_path: Path) -> None:
    maker = FakeVoiceMaker()
    creating = VoiceRegistry(maker, store=make_store(tmp_path, maker, VoiceLimits(max_audio_bytes=1234)))
    async with page_client() as client, page_client(creating) as other:
        answers = [(await each.get("/web/settings.json")).json() for each in (client, other)]
    assert [(each["voice_creation"], each["max_recording_bytes"]) for each in answers] == [(False, 0), (True, 1234)]


async def test_settings_say_which_formats_and_texts_there_can_be() -> None:
    async with page_client() as client:
        answer = (await client.get("/web/settings.json")).json()
    codecs = ["mp3", "opus", "aac", "flac"] if find_spec("av") else []
    assert answer["formats"] == ["wav", *codecs, "pcm", "mulaw", "alaw"]
    assert answer["max_text_characters"] == DEFAULT_MAX_TEXT_CHARACTERS


async def test_the_gateway_serves_the_page(tmp_path: Path) -> None:
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), []) as door:
        page, settings = await door.http.get("/"), await door.http.get("/web/settings.json")
    assert page.text.startswith("<!doctype html>")
    assert settings.json()["voice_creation"] is False
