"""Before all else at the HTTP and WebSocket door, as plain ASGI: notes which call is served, and how it was answered.

Outside of the guard, so that refusals are seen. What streams through is not touched.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.telemetry.call import Call, serving
from gateway.telemetry.dialects import dialect_of_path
from gateway.telemetry.telemetry import Telemetry
from servicekit.tracing import TRACEPARENT

_ERRORS_FROM = 400


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
        name = f"{scope.get('method', 'WS')} {scope['path']}"
        call = Call(dialect, self._telemetry.tracer.begin(name, Headers(scope=scope).get(TRACEPARENT)))
        status = _Status(send)
        error: BaseException | None = None
        try:
            with serving(call):
                await self._app(scope, receive, status.send)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._note(call, status.code, error)

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
