"""Before all else at both doors: notes which call is served, and how it was refused."""

from __future__ import annotations

from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.grpc import riva_grpc, tts_grpc
from gateway.dialects.openai import http as openai_http
from gateway.dialects.speech_ws import socket as speech_ws
from gateway.telemetry.call import ELEVENLABS, OPENAI, RIVA, SPEECH_WS, TTS, Call, serve_call
from gateway.telemetry.telemetry import Telemetry
from servicekit.tracing import NULL_SPAN, NULL_TRACER, TRACEPARENT, Span

_ERRORS_FROM = 400
_ELEVENLABS_PREFIX = "/v1/text-to-speech/"
_PATHS = {openai_http.PATH: OPENAI, speech_ws.PATH: SPEECH_WS}
"""Paths of HTTP and of sockets at which speech is asked for, beside ElevenLabs'."""
_SERVICES = {f"/{riva_grpc.SERVICE_NAME}/": RIVA, f"/{tts_grpc.SERVICE_NAME}/": TTS}
"""Beginnings of the names of gRPC's methods."""
_MAX_PATH_CHARACTERS = 200
"""Most characters of a path in a span's name; ours are shorter."""


class TelemetryMiddleware:
    """Serves calls that may ask for speech on their own account; passes the rest on."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        """Keep the application."""
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
        call = Call(dialect, NULL_SPAN if self._telemetry.tracer is NULL_TRACER else self._begin_span(scope))
        status = _Status(send)
        serve_call(call)  # each request and socket has a task of its own
        try:
            await self._app(scope, receive, status.send)
        except BaseException as error:
            self._note(call, status.code, error)
            raise
        self._note(call, status.code, None)

    def _begin_span(self, scope: Scope) -> Span:
        name = f"{scope.get('method', 'WS')} {scope['path'][:_MAX_PATH_CHARACTERS]}"
        return self._telemetry.tracer.begin(name, Headers(scope=scope).get(TRACEPARENT))

    def _note(self, call: Call, code: int | None, error: BaseException | None) -> None:
        if code is not None:
            call.span.note(http__response__status_code=code)
            if code >= _ERRORS_FROM:
                self._telemetry.refused_at_the_door(call, code)
        call.span.end(error)


class _Status:
    """Sees the status of an answer on its way out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.code: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.code = message["status"]
        await self._send(message)


_HTTP_OF = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""Status of the HTTP door that counts the same refusal; anything else is 500."""


class TelemetryInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Goes before all interceptors that may refuse a call."""

    def __init__(self, telemetry: Telemetry) -> None:
        """Keep where to tell."""
        self._telemetry = telemetry

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        dialect = next((dialect for prefix, dialect in _SERVICES.items() if method.startswith(prefix)), None)
        if handler is None or dialect is None:
            return handler
        metadata = dict(handler_call_details.invocation_metadata)
        return _observed(handler, method, dialect, metadata.get(TRACEPARENT), self._telemetry)


def _observed(handler: Any, method: str, dialect: str, traceparent: str | None, telemetry: Telemetry) -> Any:
    behavior = handler.stream_stream or handler.stream_unary  # `access.grpc_interceptor` makes no others

    async def call(request: Any, context: Any) -> Any:
        served = Call(dialect, telemetry.tracer.begin(method, traceparent))
        try:
            serve_call(served)
            answer = await behavior(request, context)
        except BaseException as error:
            if isinstance(error, grpc.aio.AbortError):
                telemetry.refused_at_the_door(served, _HTTP_OF.get(context.code(), 500))
            served.span.end(error)
            raise
        served.span.end()
        return answer

    streams = handler.response_streaming
    make_handler = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make_handler(call, handler.request_deserializer, handler.response_serializer)
