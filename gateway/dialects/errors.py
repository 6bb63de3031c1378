"""The shape of an answer that is an error: that of the door below whose prefix the caller asked.

    /v1/text-to-speech, /v1/voices, /v2/voices, /v1/user ─► ElevenLabs'  {"detail": {...}}
    everything else ──────────────────────────────────────► OpenAI's     {"error": {...}}

Handlers of routes raise errors. Others are callers who may not come in, addresses and methods that nobody serves, and
faults of our own.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi.responses import JSONResponse, Response
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.dialects.elevenlabs import wire as elevenlabs_wire
from gateway.dialects.json_socket import refuse as refuse_socket
from gateway.dialects.openai import errors as openai_errors
from gateway.errors import HTTP_SERVER_ERROR, GatewayError, NotReadyError, wire_status

_ELEVENLABS_PREFIXES = ("/v1/text-to-speech", "/v1/voices", "/v2/voices", "/v1/user")
_WHERE_TO_LOOK = "GET /docs shows what there is"
_CLIENT_LEFT = 400
"""Status in logs of an answer that nobody reads any more."""

logger = logging.getLogger(__name__)


def refusal(scope: Scope, error: GatewayError) -> Response:
    """Make the answer to an error, in the shape of the door that the scope's path belongs to."""
    if _is_elevenlabs(scope["path"]):
        return elevenlabs_wire.error_response(error)
    return openai_errors.error_response(error, scope.get("request_id"))


def shape_errors(app: Starlette) -> None:
    """Have the application answer all errors in a door's shape."""
    app.add_exception_handler(GatewayError, _answer_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_fault)
    app.router.default = _nowhere


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    if not isinstance(error, NotReadyError):  # probes ask all the time
        name = request.scope.get("request_id") or f"{request.method} {request.url.path}"
        level = logging.WARNING if wire_status(error).http >= HTTP_SERVER_ERROR else logging.INFO
        logger.log(level, "request %s failed: %s: %s", name, error.code, error)
    return refusal(request.scope, error)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_LEFT)


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
    return refusal(request.scope, GatewayError("a fault inside the gateway; its log says more"))


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
