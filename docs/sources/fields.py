"""Tables of the fields that HTTP bodies and WebSocket messages may have, and the OpenAI door as OpenAPI."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.audio import AudioFormat
from gateway.audio.formats import OPENAI_FORMATS
from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.elevenlabs import wire as elevenlabs_wire
from gateway.dialects.openai import http as openai_http
from gateway.dialects.openai import request as openai_request
from gateway.dialects.speech_ws import wire as speech_ws_wire
from gateway.errors import wire_status
from sources.markdown import WARNING, attribute_docs, code, table

ROOT = Path(__file__).resolve().parents[2]
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_HEADERS = {
    "x-request-id": "The request's name in logs: the caller's own `x-request-id`, or one that was made.",
    "x-seed": "What the speech tokens were drawn with.",
    "x-sample-rate": "Samples a second of the audio.",
    "x-ignored-fields": "Names of fields of the body that changed nothing; only there if any did.",
}


def openai_page() -> str:
    """Return the fields of the OpenAI door."""
    parts = [
        WARNING,
        "# Fields of POST /v1/audio/speech",
        "Source: `gateway/dialects/openai/request.py`. The same as [OpenAPI](openapi.json). Fields that are not listed "
        "change nothing; the answer's header `x-ignored-fields` names them. `null` means left out.",
        _fields(openai_request.SpeechBody),
        "## Headers of the answer",
        table(("header", "meaning"), [(code(name), text) for name, text in _HEADERS.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def websocket_page() -> str:
    """Return the fields of both WebSocket dialects, and of ElevenLabs' HTTP routes."""
    parts = [
        WARNING,
        "# Fields of WebSocket messages",
        "What the messages mean, and in which order they come, is on the page [WebSockets](websockets.md). Fields that "
        "are not listed are taken and left alone.",
        "## ElevenLabs: any message of a client",
        "Source: `gateway/dialects/elevenlabs/wire.py`.",
        _fields(elevenlabs_wire.ClientMessage),
        "### generation_config",
        _fields(elevenlabs_wire.GenerationConfig),
        "### voice_settings",
        _fields(elevenlabs_wire.VoiceSettings),
        "## ElevenLabs: body of the HTTP routes",
        "Source: `gateway/dialects/elevenlabs/http.py`.",
        _fields(elevenlabs_http.SpeechBody),
        "## /v1/audio/speech/stream: session.config",
        "Source: `gateway/dialects/speech_ws/wire.py`. The fields stand in the message itself or in its `session`.",
        _fields(speech_ws_wire.ConfigFields),
    ]
    return "\n\n".join(parts) + "\n"


def openapi() -> str:
    """Return the OpenAI door as an OpenAPI 3.1 document."""
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "cosydit gateway: the OpenAI door",
            "version": _version(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "security": [{}, {"key": []}],
        "paths": {
            openai_http.PATH: {"post": _speech_operation()},
            openai_http.MODELS_PATH: {"get": _models_operation()},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**_schemas(openai_request.SpeechBody), "Error": _error_schema()},
        },
    }
    return json.dumps(document, indent=2) + "\n"


def _version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def _speech_operation() -> dict[str, Any]:
    audio = {kind.media_type: {"schema": {"type": "string", "format": "binary"}} for kind in _openai_formats()}
    return {
        "operationId": "createSpeech",
        "summary": "Speak a text; the audio is sent while it is made.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SpeechBody"}}},
        },
        "responses": {
            "200": {
                "description": "Audio, or with stream_format sse events that carry it in base64.",
                "headers": {
                    name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()
                },
                "content": {**audio, "text/event-stream": {"schema": {"type": "string"}}},
            },
            **_error_responses(),
        },
    }


def _models_operation() -> dict[str, Any]:
    answer = {
        "object": "list",
        "data": [{"id": openai_http.MODEL_ID, "object": "model", "created": 0, "owned_by": openai_http.MODEL_ID}],
    }
    content = {"application/json": {"schema": {"type": "object"}, "example": answer}}
    return {
        "operationId": "listModels",
        "summary": "List the models; there is one.",
        "responses": {"200": {"description": "The list.", "content": content}},
    }


def _error_responses() -> dict[str, Any]:
    from gateway import errors

    codes: dict[int, set[str]] = {}
    for kind in errors._WIRE:
        status = wire_status(kind.__new__(kind))
        codes.setdefault(status.http, set()).add(status.code)
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        str(http): {"description": "code: " + ", ".join(sorted(names)), "content": schema}
        for http, names in sorted(codes.items())
    }


def _error_schema() -> dict[str, Any]:
    text = {"type": "string"}
    nullable = {"type": ["string", "null"]}
    error = {"message": text, "type": text, "param": nullable, "code": text}
    inner = {"type": "object", "properties": error, "required": list(error)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    """Return the model's JSON schema and those that it refers to, with the attributes' docstrings as descriptions."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    found = {**schema.pop("$defs", {}), model.__name__: schema}
    for each in (model, *_models_in(model)):
        docs = attribute_docs(each)
        for name, of_field in found[each.__name__]["properties"].items():
            of_field["description"] = docs[name]
            of_field.pop("title", None)
            _without_null(of_field)
        found[each.__name__]["description"] = (each.__doc__ or "").splitlines()[0]
    return found


def _without_null(schema: dict[str, Any]) -> None:
    """Say "may be left out" by that alone, as OpenAI's own document does."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        del schema["anyOf"]
        schema |= choices[0]
    if schema.get("default", 0) is None:
        del schema["default"]


def _models_in(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for name in model.model_fields:
        for member in _members(model.model_fields[name].annotation):
            if isinstance(member, type) and issubclass(member, BaseModel):
                yield member


def _fields(model: type[BaseModel]) -> str:
    docs = attribute_docs(model)
    rows = []
    for name, of_field in model.model_fields.items():
        required = "required" if of_field.is_required() else ""
        also = _aliases(name, of_field.validation_alias)
        rows.append((code(name) + also, _type_name(of_field.annotation), required, docs[name]))
    return table(("field", "type", "", "meaning"), rows)


def _aliases(name: str, alias: Any) -> str:
    others = [str(each) for each in getattr(alias, "choices", ()) if each != name]
    return f" (or {', '.join(map(code, others))})" if others else ""


def _type_name(annotation: Any) -> str:
    names = []
    for member in _members(annotation):
        if typing.get_origin(member) is list:
            names.append("array")
        elif isinstance(member, type) and issubclass(member, Enum):
            names.append("string")
        else:
            names.append(_JSON_TYPES.get(member, "object"))
    return " or ".join(dict.fromkeys(names))


def _members(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [each for each in typing.get_args(annotation) if each is not type(None)]
    return [annotation]


def _openai_formats() -> Mapping[AudioFormat, None]:
    return dict.fromkeys(OPENAI_FORMATS.values())
