"""How the HTTP and WebSocket doors say no: in the shape of the dialect that was asked."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.dialects.common.json_socket import refuse as refuse_socket
from gateway.dialects.elevenlabs import wire as elevenlabs_wire
from gateway.dialects.openai import errors as openai_errors
from gateway.errors import GatewayError

_ELEVENLABS_PATHS = ("/v1/text-to-speech/", "/v1/voices", "/v2/voices")


async def refuse(scope: Scope, receive: Receive, send: Send, error: GatewayError) -> None:
    """Answer an HTTP request or a WebSocket's handshake with an error; nothing may have been answered before."""
    response = refusal(scope["path"], error)
    if scope["type"] == "websocket":
        await refuse_socket(WebSocket(scope, receive, send), response)
    else:
        await response(scope, receive, send)


def refusal(path: str, error: GatewayError) -> Response:
    """Make the answer."""
    is_elevenlabs = path.startswith(_ELEVENLABS_PATHS)
    return elevenlabs_wire.error_response(error) if is_elevenlabs else openai_errors.error_response(error)
