"""Before all else at both doors: notes which call is served, and how it was refused."""

from __future__ import annotations

from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry.call import Call, dialect_of_method, dialect_of_path, serving
from gateway.telemetry.telemetry import Telemetry
from servicekit.tracing import TRACEPARENT

_ERRORS_FROM = 400
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
        dialect = dialect_of_path(scope["path"]) if kind in ("http", "websocket") else None
        if dialect is None or scope.get("method", "POST") != "POST":
            await self._app(scope, receive, send)
            return
        name = f"{scope.get('method', 'WS')} {scope['path'][:_MAX_PATH_CHARACTERS]}"
        call = Call(dialect, self._telemetry.tracer.begin(name, Headers(scope=scope).get(TRACEPARENT)))
        status = _Status(send)
        try:
            with serving(call):
                await self._app(scope, receive, status.send)
        except BaseException as error:
            self._note(call, status.code, error)
            raise
        self._note(call, status.code, None)

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
        dialect = dialect_of_method(method)
        if handler is None or dialect is None:
            return handler
        metadata = dict(handler_call_details.invocation_metadata)
        return _observed(handler, method, dialect, metadata.get(TRACEPARENT), self._telemetry)


def _observed(handler: Any, method: str, dialect: str, traceparent: str | None, telemetry: Telemetry) -> Any:
    kinds = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    make_handler, behavior = kinds[handler.request_streaming, handler.response_streaming]

    async def call(request: Any, context: Any) -> Any:
        served = Call(dialect, telemetry.tracer.begin(method, traceparent))
        try:
            with serving(served):
                answer = await behavior(request, context)
        except BaseException as error:
            if isinstance(error, grpc.aio.AbortError):
                telemetry.refused_at_the_door(served, _HTTP_OF.get(context.code(), 500))
            served.span.end(error)
            raise
        served.span.end()
        return answer

    return make_handler(call, handler.request_deserializer, handler.response_serializer)
