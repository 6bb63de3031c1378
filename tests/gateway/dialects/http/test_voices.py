"""Voices over HTTP from a real server: the fields of both kinds of client, limits, errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.voices.registry import NamedVoice, VoiceRegistry
from gateway.voices.store import VoiceLimits
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM, app_of, make_voices_host, speech_deltas
from tests.gateway.voices.fakes import UNIX_TIME, FakeVoiceMaker, make_store

PATH = "/v1/audio/voices"
FORM = {"name": "eva", "consent": "cons_1234", "transcript": "I am Eva."}
FIELD = b'\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'
NAMELESS = b"--b\r\nContent-Disposition: form-data\r\n\r\nzz\r\n--b--"
LIMITS = VoiceLimits(max_audio_bytes=50_000, max_voices=3, creations_per_minute=1000)


@asynccontextmanager
async def voice_door(
    folder: Path, voices: list[NamedVoice], limits: VoiceLimits | None = LIMITS
) -> AsyncIterator[Door]:
    maker = FakeVoiceMaker()
    store = make_store(folder / "created", maker, limits) if limits is not None else None
    async with opened_door(FakeLLM(speech_deltas(20)), maker, voices, store=store) as door:
        yield door


@asynccontextmanager
async def voice_client(
    folder: Path, voices: list[NamedVoice], limits: VoiceLimits | None = LIMITS
) -> AsyncIterator[httpx.AsyncClient]:
    """Ask the routes without a socket: for what a form may hold, not for how it travels."""
    maker = FakeVoiceMaker()
    store = make_store(folder / "created", maker, limits) if limits is not None else None
    host = make_voices_host(VoiceRegistry(maker, voices, store=store))
    transport = httpx.ASGITransport(app_of(host))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


def recording(data: bytes = b"RIFF-eva") -> dict[str, Any]:
    return {"audio_sample": ("eva.wav", data, "audio/wav")}


async def create(client: httpx.AsyncClient, data: bytes = b"RIFF-eva", **changes: str) -> httpx.Response:
    return await client.post(PATH, data=FORM | changes, files=recording(data))


async def test_a_created_voice_answers_as_openai_and_vllm_omni_do(tmp_path: Path, voices: list[NamedVoice]) -> None:
    async with voice_client(tmp_path, voices) as client:
        response = await create(client, speaker_description="warm")
        listed = (await client.get(PATH)).json()
        shown = (await client.get(f"{PATH}/{response.json()['id']}")).json()
    body = response.json()
    assert (response.status_code, body["object"], body["name"], body["created_at"]) == (
        200,
        "audio.voice",
        "eva",
        UNIX_TIME,
    )
    expected = {
        "consent": "cons_1234",
        "mime_type": "audio/wav",
        "file_size": 8,
        "seconds": 2.0,
        "ref_text": FORM["transcript"],
    }
    assert body["success"] is True
    assert body["voice"].items() >= {**expected, "speaker_description": "warm", "id": body["id"]}.items()
    assert (listed["voices"], listed["uploaded_voices"]) == (["anna", "default", "eva"], [body["voice"]])
    assert shown == {"object": "audio.voice", "type": "audio_sample", **body["voice"], "description": "warm"}


async def test_every_voice_is_listed_with_what_is_said_of_it(tmp_path: Path, voices: list[NamedVoice]) -> None:
    async with voice_client(tmp_path, voices) as client:
        created = (await create(client, description="mine")).json()["id"]
        listed = (await client.get(PATH)).json()["details"]
        shown = (await client.get(f"{PATH}/anna")).json()
    anna = {"description": "A woman, warm and quick, German.", "gender": "female", "language": "de-DE"}
    assert listed == [
        {"id": "anna", "name": "anna", **anna, "aliases": []},
        {"id": "default", "name": "default", "description": "", "aliases": []},
        {"id": created, "name": "eva", "description": "mine", "aliases": []},
    ]
    assert shown == {"object": "audio.voice", "id": "anna", "name": "anna", **anna, "ref_text": "I am anna."}


async def test_vllm_omnis_and_the_plain_field_names_mean_the_same(tmp_path: Path, voices: list[NamedVoice]) -> None:
    async with voice_client(tmp_path, voices) as client:
        form = {"name": "eva", "consent": "yes", "ref_text": "I am Eva.", "type": "audio_sample"}
        response = await client.post(PATH, data=form, files={"file": ("x", b"RIFF", "audio/flac")})
    assert response.json()["voice"].items() >= {"ref_text": "I am Eva.", "mime_type": "audio/flac"}.items()


async def test_a_created_voice_speaks_by_name_and_by_id_until_it_is_deleted(
    tmp_path: Path, voices: list[NamedVoice]
) -> None:
    async with voice_door(tmp_path, voices) as door:
        voice_id = (await create(door.http)).json()["id"]
        spoken = [await door.speak(voice=voice) for voice in ("eva", {"id": voice_id})]
        deleted = await door.http.delete(f"{PATH}/{voice_id}")
        after = [await door.speak(voice="eva"), await door.http.delete(f"{PATH}/eva")]
    assert [response.status_code for response in spoken] == [200, 200]
    answer = {"object": "audio.voice", "id": voice_id, "deleted": True, "success": True}
    assert deleted.json().items() >= answer.items()
    assert [response.status_code for response in after] == [404, 404]


async def test_the_operators_voices_are_shown_and_not_deleted(tmp_path: Path, voices: list[NamedVoice]) -> None:
    async with voice_client(tmp_path, voices) as client:
        shown = (await client.get(f"{PATH}/anna")).json()
        refused = await client.delete(f"{PATH}/anna")
    assert (shown["id"], shown["ref_text"]) == ("anna", "I am anna.")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "voice_protected")


@pytest.mark.parametrize(
    ("form", "files", "status", "param"),
    [
        pytest.param({"name": None}, recording(), 400, "name", id="no name"),
        pytest.param({"consent": None}, recording(), 400, "consent", id="no consent"),
        pytest.param({}, {"cover": ("a.png", b"x")}, 400, "cover", id="another file"),
        pytest.param({"colour": "red"}, recording(), 400, "colour", id="an unknown field"),
        pytest.param({"ref_text": "twice"}, recording(), 400, "ref_text", id="a transcript twice"),
        pytest.param({"name": "../../x"}, recording(), 400, "name", id="a path as name"),
        pytest.param({"name": "anna"}, recording(), 409, "name", id="a taken name"),
        pytest.param({"type": "prompt"}, recording(), 400, "type", id="OpenAI's other type"),
        pytest.param({}, recording(b""), 400, "audio_sample", id="an empty recording"),
        pytest.param({}, recording(b"not audio"), 400, "voice", id="not audio"),
        pytest.param({}, recording(b"x" * 50_001), 413, "audio_sample", id="a large recording"),
        pytest.param({}, recording(b"x" * 500_000), 413, "audio_sample", id="a huge body"),
        pytest.param({"transcript": "x" * 20_000}, recording(), 400, "transcript", id="a huge field"),
    ],
)
async def test_a_bad_form_is_an_openai_shaped_error_and_leaves_nothing(
    tmp_path: Path,
    voices: list[NamedVoice],
    form: dict[str, str | None],
    files: dict[str, Any],
    status: int,
    param: str | None,
) -> None:
    async with voice_client(tmp_path, voices) as client:
        sent = {name: value for name, value in (FORM | form).items() if value is not None}
        response = await client.post(PATH, data=sent, files=files)
        assert (await client.get(PATH)).json()["uploaded_voices"] == []
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param("application/json", b'{"type": "prompt", "name": "x", "prompt": "y"}', id="JSON"),
        pytest.param("multipart/form-data", b"x", id="no boundary"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\nrubbish", id="cut"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\nno colon\r\n\r\nx\r\n--b--", id="damaged"),
        pytest.param("multipart/form-data; boundary=b", NAMELESS, id="no name"),
        pytest.param("multipart/form-data; boundary=b", b"--b" + FIELD % b"name" + b"\xff\r\n--b--", id="not UTF-8"),
        pytest.param("multipart/form-data; boundary=b", b"--b" + (FIELD % b"x" + b"x\r\n--b") * 20 + b"--", id="many"),
        pytest.param("multipart/form-data; boundary=b", b"--b--\r\n", id="empty"),
    ],
)
async def test_what_is_no_form_is_a_400(
    tmp_path: Path, voices: list[NamedVoice], content_type: str, body: bytes
) -> None:
    async with voice_client(tmp_path, voices) as client:
        response = await client.post(PATH, content=body, headers={"content-type": content_type})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_caller_that_creates_too_fast_is_told_when_to_come_back_before_its_upload_is_read(
    tmp_path: Path, voices: list[NamedVoice]
) -> None:
    limits = VoiceLimits(max_audio_bytes=50_000, creations_per_minute=1)
    async with voice_door(tmp_path, voices, limits) as door:
        await create(door.http)
        response = await create(door.http, b"x" * 500_000, name="berta")
    assert (response.status_code, response.json()["error"]["code"]) == (429, "voice_rate_limited")
    assert response.headers["retry-after"] == "60"


async def test_a_full_store_and_a_taken_name_ask_clients_not_to_retry(tmp_path: Path, voices: list[NamedVoice]) -> None:
    async with voice_client(tmp_path, voices) as client:
        await create(client)
        taken = await create(client)
        for name in ("b", "c"):
            await create(client, name=name)
        full = await create(client, name="d")
    assert [response.status_code for response in (taken, full)] == [409, 429]
    assert [response.headers["x-should-retry"] for response in (taken, full)] == ["false", "false"]


async def test_without_a_directory_creating_is_refused_and_listing_goes_on(
    tmp_path: Path, voices: list[NamedVoice]
) -> None:
    async with voice_client(tmp_path, voices, limits=None) as client:
        refused = await create(client)
        listed = (await client.get(PATH)).json()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_option")
    assert [voice["name"] for voice in listed.pop("details")] == ["anna", "default"]
    assert listed == {"voices": ["anna", "default"], "uploaded_voices": [], "aliases": {}}


@pytest.mark.parametrize("path", ["%2e%2e%2fdefault.wav", "voice_" + "0" * 24, "%00", "a%2Fb", "x" * 5000])
async def test_names_that_are_no_voice_are_a_404(tmp_path: Path, voices: list[NamedVoice], path: str) -> None:
    async with voice_client(tmp_path, voices) as client:
        responses = [await client.request(method, f"{PATH}/{path}") for method in ("GET", "DELETE")]
    assert [response.status_code for response in responses] == [404, 404]
    assert (tmp_path / "default.wav").exists()


async def test_an_upload_that_is_far_too_large_is_cut_off(tmp_path: Path, voices: list[NamedVoice]) -> None:
    async with voice_door(tmp_path, voices) as door:
        response = await create(door.http, b"x" * 5_000_000)
        assert (await door.http.get(PATH)).json()["uploaded_voices"] == []
    assert (response.status_code, response.json()["error"]["param"]) == (413, "audio_sample")
