"""Routes of the HTTP door with their descriptions, of which FastAPI makes /openapi.json.

    Endpoint ─┬─ served: Starlette's route, `handler(request)`
              └─ shown: FastAPI's route, whose parameters `takes` has in its signature; nothing calls it

A WebSocket is shown as a GET that is answered 101, as OpenAPI has no word for sockets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Annotated, Any

from fastapi import Path
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.dialects.elevenlabs.wire import ElevenLabsErrorBody
from gateway.dialects.openai.errors import ErrorBody
from gateway.errors import known_statuses
from gateway.host import Host
from gateway.voices.registry import VoiceRegistry

JSON = "application/json"
_SWITCHING_PROTOCOLS = 101
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_JSON_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


class Door(str, Enum):
    """Whose protocol an address belongs to."""

    OPENAI = "OpenAI"
    VOICES = "Voices"
    ELEVENLABS = "ElevenLabs"
    OMNI = "vllm-omni, sglang-omni"
    GATEWAY = "Gateway"
    PAGE = "Pages"


VoiceName = Annotated[str, Path(description="Name or id of a voice; where speech is made an alias too.")]


def voices_of(request: Request) -> VoiceRegistry:
    """Return the voices of the gateway that was asked."""
    host: Host = request.app.state.host
    return host.voices


def a_voice(voice: VoiceName) -> None:
    """Show a route that takes a voice in its path, and nothing else."""


def _nothing() -> None:
    """Show a route that takes nothing."""


class Endpoint(Route):
    """One method of one address."""

    def __init__(
        self,
        method: str,
        path: str,
        handler: Callable[[Request], Awaitable[Any] | Response],
        door: Door,
        summary: str,
        *,
        takes: Callable[..., None] = _nothing,
        media_types: tuple[str, ...] = (JSON,),
        example: Any = None,
        headers: Mapping[str, str] | None = None,
        speaks: bool = False,
    ) -> None:
        """Make both routes.

        Args:
            method: of HTTP.
            path: with its parameters in braces.
            handler: answers a request.
            door: whose protocol it is.
            summary: what the address is for.
            takes: has the parameters and the body in its signature.
            media_types: of the answer.
            example: of an answer in JSON; every answer has the same types.
            headers: of the answer, with their meaning.
            speaks: whether the endpoint asks both services, so that it may answer any error.
        """
        super().__init__(path, handler, methods=[method])
        described = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in (headers or {}).items()
        }
        errors = ElevenLabsErrorBody if door is Door.ELEVENLABS else ErrorBody
        answer = {"content": {each: _content(each, example) for each in media_types}}
        refusals = {"default": "An error."}
        if speaks:
            refusals = {str(status): f"code: {', '.join(codes)}" for status, codes in known_statuses().items()}
        self.shown = _shown(
            *(path, takes, method, door, summary),
            response_description="The answer.",
            response_class=JSONResponse if JSON in media_types else Response,
            responses={
                200: answer | ({"headers": described} if described else {}),
                **{status: {"model": errors, "description": text} for status, text in refusals.items()},
            },
        )


class Socket(WebSocketRoute):
    """One address of WebSockets."""

    def __init__(
        self,
        path: str,
        handler: Callable[[WebSocket], Awaitable[None]],
        door: Door,
        summary: str,
        takes: Callable[..., None] = _nothing,
    ) -> None:
        """Make both routes; see `Endpoint`."""
        super().__init__(path, handler)
        self.shown = _shown(
            *(path, takes, "GET", door, summary),
            status_code=_SWITCHING_PROTOCOLS,
            response_description="The socket is open.",
            responses={"default": {"description": "An error."}},
        )


def shown_of(routes: list[BaseRoute]) -> list[APIRoute]:
    """Return the descriptions of those routes that have one."""
    return [each.shown for each in routes if isinstance(each, Endpoint | Socket)]


def _shown(path: str, takes: Callable[..., None], method: str, door: Door, summary: str, **answers: Any) -> APIRoute:
    named = "websocket" if answers.get("status_code") == _SWITCHING_PROTOCOLS else method
    words = re.findall(r"[a-zA-Z0-9]+", _PARAMETER.sub(r"\1", path)) or ["page"]
    answers |= {"operation_id": "_".join([named.lower(), *words]), "tags": [door], "summary": summary}
    shown = APIRoute(path, takes, methods=[method], **answers)
    shown.description = ""  # FastAPI's is the docstring of `takes`, which speaks to its readers alone
    return shown


def _content(media_type: str, example: Any) -> dict[str, Any]:
    if media_type == JSON:
        return {"schema": _schema_of(example), "example": example}
    return {"schema": {"type": "string"} | ({} if media_type.startswith("text/") else {"format": "binary"})}


def _schema_of(example: Any) -> dict[str, Any]:
    """Return the schema of values of an example's types; objects may have more members."""
    if isinstance(example, dict):
        members = {name: _schema_of(value) for name, value in example.items()}
        return {"type": "object", "properties": members, "required": list(members)}
    if isinstance(example, list):
        return {"type": "array", "items": _schema_of(example[0])}
    return {"type": _JSON_TYPES[type(example)]} if example is not None else {}
