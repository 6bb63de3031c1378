"""Tables of the fields that HTTP bodies and WebSocket messages may have, and the HTTP door as OpenAPI."""

from __future__ import annotations

import json
import re
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.elevenlabs import wire as elevenlabs_wire
from gateway.dialects.openai import request as openai_request
from gateway.dialects.openai.http import SPEECH_HEADERS
from gateway.dialects.speech_ws import wire as speech_ws_wire
from gateway.doors.http import document
from sources.endpoints import ROUTES
from sources.markdown import WARNING, attribute_docs, code, listing

ROOT = Path(__file__).resolve().parents[2]
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def openai_page() -> str:
    """Return the fields of the OpenAI door."""
    parts = [
        WARNING,
        "# Fields of POST /v1/audio/speech",
        "The same as [OpenAPI](openapi.json). Only `input` is required. Fields that are not listed change nothing; the "
        "answer's header `x-ignored-fields` names them. `null` means left out.",
        _fields(openai_request.SpeechBody),
        "## Headers of the answer",
        listing((code(name), text, "") for name, text in SPEECH_HEADERS.items()),
    ]
    return "\n\n".join(parts) + "\n"


def websocket_page() -> str:
    """Return the fields of both WebSocket dialects, and of ElevenLabs' HTTP routes."""
    parts = [
        WARNING,
        "# Fields of WebSocket messages",
        "[WebSockets](websockets.md) says what the messages mean and in which order they come. Unlisted fields "
        "change nothing.",
        "## ElevenLabs: any message of a client",
        _fields(elevenlabs_wire.ClientMessage),
        "### generation_config",
        _fields(elevenlabs_wire.GenerationConfig),
        "### voice_settings",
        _fields(elevenlabs_wire.VoiceSettingsFields),
        "## ElevenLabs: body of the HTTP routes",
        _fields(elevenlabs_http.ElevenLabsSpeechBody),
        "## /v1/audio/speech/stream: session.config",
        "The fields stand in the message itself or in its `session`.",
        _fields(speech_ws_wire.ConfigFields, told=openai_request.SpeechBody),
    ]
    return "\n\n".join(parts) + "\n"


def openapi() -> str:
    """Return the HTTP door as an OpenAPI 3.1 document."""
    return json.dumps(document(ROUTES, _version(), "http://127.0.0.1:8080"), indent=0) + "\n"


def _version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def _fields(model: type[BaseModel], told: type[BaseModel] | None = None) -> str:
    """Return the list of a model's fields; those that another model has with the same words are only named."""
    docs, elsewhere = attribute_docs(model), attribute_docs(told) if told else {}
    names = [name for name in model.model_fields if elsewhere.get(name) != docs[name]]
    rows = []
    for name in names:
        of_field = model.model_fields[name]
        rows.append(
            (code(name) + _aliases(name, of_field.validation_alias), docs[name], _type_name(of_field.annotation))
        )
    same = [code(name) for name in model.model_fields if name not in names]
    after = f"\n\nAs on [POST /v1/audio/speech](openai-fields.md): {', '.join(same)}." if same else ""
    return listing(rows) + after


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
