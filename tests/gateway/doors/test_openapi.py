"""What the HTTP door says of itself is what it serves: every route, every field, every answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry

from gateway.dialects.endpoints import shown_of
from gateway.doors.http import build_app, document
from gateway.voices.registry import NamedVoice
from tests import ROOT
from tests.gateway.dialects.http.test_voices import voice_door
from tests.gateway.doors.grpc_door import opened_grpc
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
FILE = re.compile(r"/web/[\w-]+\.(js|css|svg)")
"""A part of a page."""


def refs_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if "$ref" in value else []
        for each in value.values():
            yield from refs_of(each)
    if isinstance(value, list):
        for each in value:
            yield from refs_of(each)


def operations(api: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, each) for path, methods in api["paths"].items() for method, each in methods.items()]


def validator(api: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": api["components"]})


def described(metrics: CollectorRegistry | None = None) -> dict[str, Any]:
    """Return the document of an application that serves all there is."""
    return document(build_app(None, metrics).routes, "1.2.3", ".")  # type: ignore[arg-type]


def test_every_route_is_described_but_files_of_the_page() -> None:
    routes = build_app(None, CollectorRegistry()).routes  # type: ignore[arg-type]
    left_out: list[Any] = [route for route in routes if not shown_of([route])]
    assert all(FILE.fullmatch(route.path) for route in left_out)
    assert len(operations(described(CollectorRegistry()))) == len(routes) - len(left_out) > 25


def test_without_metrics_the_document_does_not_speak_of_them() -> None:
    assert "/metrics" not in described()["paths"] and "/openapi.json" in described()["paths"]


def test_the_document_is_sound() -> None:
    api = described()
    assert (api["openapi"], api["info"]["version"]) == ("3.1.0", "1.2.3")
    assert {ref.removeprefix("#/components/schemas/") for ref in refs_of(api)} <= set(api["components"]["schemas"])
    for schema in api["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    ids = [each["operationId"] for _, _, each in operations(api)]
    assert len(ids) == len(set(ids))
    for _, path, each in operations(api):
        declared = [one["name"] for one in each.get("parameters", ()) if one["in"] == "path"]
        assert declared == re.findall(r"\{([^}]+)\}", path)
        assert "description" not in each, "no docstring of ours"
        assert each["summary"] and set(each["tags"]) <= {tag["name"] for tag in api["tags"]}


def test_every_field_of_a_body_is_described() -> None:
    api = described()
    for name in ("SpeechBody", "ElevenLabsSpeechBody", "VoiceObject", "VoiceSettingsFields"):
        fields = api["components"]["schemas"][name]["properties"]
        assert fields and all(field.get("description") for field in fields.values()), name
    assert api["components"]["schemas"]["SpeechBody"]["required"] == ["input"]


async def test_answers_are_what_the_document_says(tmp_path: Any, voices: Voices) -> None:
    async with voice_door(tmp_path, voices) as door:
        api = (await door.http.get("/openapi.json")).json()
        files = {"audio_sample": ("me.wav", b"RIFF-eva", "audio/wav")}
        await door.http.post("/v1/audio/voices", data={"name": "eva", "consent": "yes"}, files=files)
        checked = 0
        for method, path, each in operations(api):
            answer = each["responses"].get("200")
            if method != "get" or answer is None:
                continue
            address = path.replace("{voice}", "anna").replace("{model}", "cosydit")
            got = await door.http.get(address)
            media_type = got.headers["content-type"].partition(";")[0]
            assert got.status_code == 200 and media_type in answer["content"], address
            if media_type == "application/json":
                validator(api, answer["content"][media_type]["schema"]).validate(got.json())
                checked += 1
    assert checked >= 9


async def test_speech_and_refusals_are_what_the_document_says(voices: Voices) -> None:
    async with opened_door(FakeLLM(speech_deltas(25)), FakeToken2Wav(), voices) as door:
        api = (await door.http.get("/openapi.json")).json()
        for method, path, each in operations(api):
            body = each.get("requestBody", {}).get("content", {}).get("application/json")
            if body is None:
                continue
            right = {"model": "m", "input": "hello", "voice": "anna", "text": "hello"}
            validator(api, body["schema"]).validate(right)
            for voice, fields in (("anna", right), ("nobody", {**right, "voice": "nobody"}), ("anna", {})):
                got = await door.http.request(method, path.replace("{voice}", voice), json=fields)
                answer = each["responses"][str(got.status_code)]
                content = answer["content"][got.headers["content-type"].partition(";")[0]]
                told = {name: str(header) for name, header in answer.get("headers", {}).items()}
                assert {name for name, header in told.items() if "only there if" not in header} <= set(got.headers)
                if got.status_code != 200:
                    validator(api, content["schema"]).validate(got.json())


async def test_the_page_of_the_interface_is_served_without_anything_from_elsewhere(voices: Voices) -> None:
    async with opened_door(FakeLLM([]), FakeToken2Wav(), voices) as door:
        page = await door.http.get("/docs")
        parts = re.findall(r'(?:src|href)="(web/[^"]+)"', page.text)
        found = [(await door.http.get(f"/{part}")).status_code for part in parts]
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "web/docs.js" in parts and found == [200] * len(parts)
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]", page.text)


async def test_the_documentation_names_every_service_of_grpc(voices: Voices) -> None:
    page = (ROOT / "docs/api/endpoints.md").read_text("utf-8")
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        stub = reflection_pb2_grpc.ServerReflectionStub(door.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = await anext(aiter(stub.ServerReflectionInfo(iter([request]))))
    names = [service.name for service in answer.list_services_response.service]
    assert len(names) == 4 and all(f"- `{name}`: " in page for name in names)
    assert all(path in page for path in described()["paths"])


def test_the_documentation_names_every_event_that_the_wyoming_door_takes() -> None:
    source = (ROOT / "gateway/dialects/wyoming/connection.py").read_text("utf-8")
    taken = set(re.findall(r'kind == "([a-z-]+)"', source))
    section = (ROOT / "docs/api/endpoints.md").read_text("utf-8").partition("## Wyoming")[2].partition("\n## ")[0]
    assert len(taken) > 4 and taken == set(re.findall(r"`([a-z-]+)`", section))


def test_a_socket_stands_as_a_get_that_is_answered_101() -> None:
    sockets = [path for _, path, each in operations(described()) if "101" in each["responses"]]
    assert len(sockets) == 3 and all(path.endswith(("-input", "/stream")) for path in sockets)
