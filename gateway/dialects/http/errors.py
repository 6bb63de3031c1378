"""Which shape an error has where no route made it: that of the door below whose prefix the caller asked.

    /v1/text-to-speech, /v1/voices, /v2/voices, /v1/user ─► ElevenLabs'  {"detail": {...}}
    everything else ──────────────────────────────────────► OpenAI's     {"error": {...}}

Here are the callers who may not come in, addresses and methods that nobody serves, and faults of our own.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.dialects.common.json_socket import refuse as refuse_socket
from gateway.dialects.elevenlabs import wire as elevenlabs_wire
from gateway.dialects.openai import errors as openai_errors
from gateway.errors import GatewayError

_ELEVENLABS_PREFIXES = ("/v1/text-to-speech", "/v1/voices", "/v2/voices", "/v1/user")
_WHERE_TO_LOOK = "GET /docs shows what there is"


def refusal(path: str, error: GatewayError) -> Response:
    """Make the answer to an error, in the shape of the door that `path` belongs to."""
    return elevenlabs_wire.error_response(error) if _is_elevenlabs(path) else openai_errors.error_response(error)


def shape_other_errors(app: FastAPI) -> None:
    """Have the application answer in a door's shape also where no route does: unknown addresses, faults of our own."""
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_fault)
    app.router.default = _nowhere


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what no route takes; a WebSocket's handshake too."""
    missing = HTTPException(HTTPStatus.NOT_FOUND)
    if scope["type"] != "websocket":
        raise missing
    socket = WebSocket(scope, receive, send)
    await refuse_socket(socket, _http_refusal(socket, missing, "WebSocket"))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _http_refusal(request, error, request.method)


async def _answer_fault(request: Request, error: Exception) -> Response:
    return refusal(request.url.path, GatewayError("a fault inside the gateway; its log says more"))


def _http_refusal(asked: HTTPConnection, error: HTTPException, method: str) -> Response:
    path, status = asked.url.path, HTTPStatus(error.status_code)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    message = f"{method} {path}: {status.phrase}; {_WHERE_TO_LOOK}"
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(_methods_of(asked))
        message = f"{method} {path}: {status.phrase}; it takes {headers['allow']}"
    code = status.name.lower()
    shaped = elevenlabs_wire.detail if _is_elevenlabs(path) else openai_errors.described
    return JSONResponse(shaped(message, code), status, headers)


def _methods_of(asked: HTTPConnection) -> list[str]:
    """Return what may be asked of a path whose routes do not take the method that came."""
    routes = [route for route in asked.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(asked.scope)[0] is not Match.NONE]
    return sorted({method for methods in found for method in methods})


def _is_elevenlabs(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in _ELEVENLABS_PREFIXES)
