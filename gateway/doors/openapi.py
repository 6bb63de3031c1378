"""The HTTP door as an OpenAPI 3.1 document, made from the table of its endpoints.

A WebSocket stands in it as a GET that is answered 101: OpenAPI has no word for sockets.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute

from gateway.doors.endpoints import DOCUMENT_PATH, ENDPOINTS, WEBSOCKET, Door, Endpoint, Form
from gateway.errors import known_statuses

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFERENCE = "#/components/schemas/{model}"
_JSON_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_MEANINGS = {
    "voice": "Name or id of a voice; where speech is made an alias too.",
    "model": "Name of the model.",
}
_DESCRIPTIONS = {
    Door.OPENAI: "OpenAI's interface, for its clients and for whoever speaks HTTP.",
    Door.VOICES: "Creating, listing and deleting voices, with the fields of OpenAI's and vllm-omni's clients.",
    Door.ELEVENLABS: "ElevenLabs' interface, for its SDK, LiveKit and Pipecat.",
    Door.OMNI: "The WebSocket of vllm-omni's and sglang-omni's clients.",
    Door.GATEWAY: "Probes, metrics and this document.",
    Door.PAGE: "For browsers.",
}


def routes(served: Iterable[BaseRoute]) -> list[BaseRoute]:
    """Return the route of the document, which describes itself and what is served.

    Args:
        served: all other routes of the application.
    """
    found = asked_of([*served, Route(DOCUMENT_PATH, lambda _: Response())])
    endpoints = [each for each in ENDPOINTS if (each.method, each.path) in found]
    content = document(endpoints, _version(), ".")

    async def show(request: Request) -> Response:
        return JSONResponse(content, headers={"cache-control": "no-cache"})

    return [Route(DOCUMENT_PATH, show, methods=["GET"])]


def asked_of(routes: Iterable[BaseRoute]) -> set[tuple[str, str]]:
    """Return method and path of everything that routes answer, but for HEAD and OPTIONS, which say nothing new."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        if isinstance(route, WebSocketRoute):
            found.add((WEBSOCKET, route.path))
        elif isinstance(route, Route):
            found |= {(method, route.path) for method in (route.methods or ()) if method not in ("HEAD", "OPTIONS")}
    return found


def document(endpoints: Iterable[Endpoint], version: str, server_url: str) -> dict[str, Any]:
    """Return the document.

    Args:
        endpoints: what it describes.
        version: of the package.
        server_url: where they are, absolute or relative to the document.
    """
    endpoints = list(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _error_schema(), "ElevenLabsError": _elevenlabs_error_schema()}
    for each in endpoints:
        method = "get" if each.method == WEBSOCKET else each.method.lower()
        paths.setdefault(_PARAMETER.sub(r"{\1}", each.path), {})[method] = _operation(each)
        if isinstance(each.body, type):
            schemas |= _schemas(each.body)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cosydit gateway",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": server_url}],
        "security": [{}, {"bearer": []}, {"header": []}],
        "tags": [{"name": door.value, "description": _DESCRIPTIONS[door]} for door in Door],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "xi-api-key"},
            },
            "schemas": schemas,
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "tags": [endpoint.door.value],
        "summary": endpoint.summary,
        "parameters": [*map(_path_parameter, _PARAMETER.findall(endpoint.path)), *_query_parameters(endpoint)],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _body(endpoint.body)}
    return {name: value for name, value in operation.items() if value != []}


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-zA-Z0-9]+", _PARAMETER.sub(r"\1", endpoint.path)) or ["page"]
    return "_".join([endpoint.method.lower(), *words])


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _MEANINGS[name],
        "schema": {"type": "string"},
    }


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.query.items()
    ]


def _body(body: type[BaseModel] | Form) -> dict[str, Any]:
    if isinstance(body, Form):
        texts = {name: {"type": "string", "description": text} for name, text in body.texts.items()}
        files = {name: {"type": "string", "format": "binary", "description": t} for name, t in body.files.items()}
        schema = {"type": "object", "properties": {**texts, **files}, "required": list(body.required)}
        return {"multipart/form-data": {"schema": schema}}
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=_name_of(body))}}}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.method == WEBSOCKET:
        return {"101": {"description": "The socket is open."}, "default": _error_response(endpoint)}
    answer: dict[str, Any] = {
        "description": "The answer.",
        "content": {media_type: _content(media_type, endpoint.example) for media_type in endpoint.media_types},
    }
    if endpoint.headers:
        answer["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in endpoint.headers.items()
        }
    refusals = {"default": _error_response(endpoint)}
    if endpoint.speaks:
        refusals = {
            str(http): _error_response(endpoint, "code: " + ", ".join(codes))
            for http, codes in known_statuses().items()
        }
    if endpoint.door is Door.ELEVENLABS and isinstance(endpoint.body, type):
        refusals["422"] = _error_response(endpoint, "The body is of the wrong form.")
    return {"200": answer, **dict(sorted(refusals.items()))}


def _content(media_type: str, example: Any) -> dict[str, Any]:
    if media_type == "application/json":
        return {"schema": _schema_of(example), "example": example}
    is_text = media_type.startswith("text/")
    return {"schema": {"type": "string"} if is_text else {"type": "string", "format": "binary"}}


def _schema_of(example: Any) -> dict[str, Any]:
    """Return the schema of values of an example's types; objects may have more members."""
    if isinstance(example, dict):
        members = {name: _schema_of(value) for name, value in example.items()}
        return {"type": "object", "properties": members, "required": list(members)}
    if isinstance(example, list):
        return {"type": "array", "items": _schema_of(example[0])}
    return {"type": _JSON_TYPES[type(example)]} if example is not None else {}


def _error_response(endpoint: Endpoint, description: str = "An error.") -> dict[str, Any]:
    name = "ElevenLabsError" if endpoint.door is Door.ELEVENLABS else "Error"
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}},
    }


def _error_schema() -> dict[str, Any]:
    text = {"type": "string"}
    nullable = {"type": ["string", "null"]}
    error = {"message": text, "type": text, "param": nullable, "code": text}
    inner = {"type": "object", "properties": error, "required": list(error)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


def _elevenlabs_error_schema() -> dict[str, Any]:
    text = {"type": "string"}
    one = {"type": "object", "properties": {"status": text, "message": text}, "required": ["status", "message"]}
    field = {"loc": {"type": "array"}, "msg": text, "type": text}
    wrong_form = {"type": "array", "items": {"type": "object", "properties": field, "required": list(field)}}
    return {"type": "object", "properties": {"detail": {"oneOf": [one, wrong_form]}}, "required": ["detail"]}


def _name_of(model: type[BaseModel]) -> str:
    return model.model_config.get("title") or model.__name__


@cache
def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    """Return the model's schema and those that it refers to."""
    schema = model.model_json_schema(ref_template=_REFERENCE)
    found: dict[str, Any] = {**schema.pop("$defs", {}), _name_of(model): schema}
    for each in found.values():
        each.pop("title", None)
        each["description"] = each.get("description", "").split("\n")[0]
        for of_field in each.get("properties", {}).values():
            _tidy(of_field)
    return found


def _tidy(schema: dict[str, Any]) -> None:
    """Say "may be left out" by that alone, as OpenAI's own document does, and descriptions on one line."""
    schema.pop("title", None)
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        del schema["anyOf"]
        schema |= choices[0]
    if schema.get("default", 0) is None:
        del schema["default"]
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())


def _version() -> str:
    try:
        return importlib.metadata.version("cosydit")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
