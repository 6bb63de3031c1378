"""Before all else at the HTTP door: notes which call is served, and how it was refused."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.openai import http as openai_http
from gateway.dialects.speech_ws import socket as speech_ws
from gateway.telemetry.call import ELEVENLABS, OPENAI, SPEECH_WS
from gateway.telemetry.telemetry import Telemetry
from servicekit.tracing import TRACEPARENT

_ERRORS_FROM = 400
_ELEVENLABS_PREFIX = "/v1/text-to-speech/"
_PATHS = {openai_http.PATH: OPENAI, speech_ws.PATH: SPEECH_WS}
"""Paths of HTTP and of sockets at which speech is asked for, beside ElevenLabs'."""
_MAX_PATH_CHARACTERS = 200
"""Most characters of a path in a span's name; ours are shorter."""


class TelemetryMiddleware:
    """Serves calls that may ask for speech on their own account; passes the rest on."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or serve one socket."""
        kind = scope["type"]
        path: str = scope["path"] if kind in ("http", "websocket") else ""
        dialect = ELEVENLABS if path.startswith(_ELEVENLABS_PREFIX) else _PATHS.get(path)
        if dialect is None or scope.get("method", "POST") != "POST":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            await send(message)

        name = f"{scope.get('method', 'WS')} {path[:_MAX_PATH_CHARACTERS]}"
        # Each request and socket has a task of its own.
        with self._telemetry.serving(dialect, name, Headers(scope=scope).get(TRACEPARENT)) as call:
            try:
                await self._app(scope, receive, watched)
            finally:
                if status is not None:
                    call.span.note(http__response__status_code=status)
                    if status >= _ERRORS_FROM:
                        self._telemetry.observer.refused_at_the_door(call, status)
