"""Checks the callers at the HTTP and WebSocket door, as plain ASGI that leaves streamed data unchanged.

    CORS ─► origin and host ─► key ─► body limit ─► application

Refuses before a byte of the body is read. `gateway.speech.speaker` holds callers to their limits on speech.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.access.access import Access
from gateway.access.caller import NOBODY, Caller, call_for
from gateway.access.origins import HostNames, OriginPolicy
from gateway.dialects.errors import refusal
from gateway.dialects.json_socket import refuse as refuse_socket
from gateway.errors import AccessError, GatewayError, UploadTooLargeError

OPEN_PATHS = ("/", "/docs", "/openapi.json", "/health", "/healthz", "/readyz")
"""Paths that need no key for reading: probes, the interface's description, and the page, which asks for the key."""
OPEN_FOLDER = "/web/"
"""Path of the web page's files, which need no key."""
_OPEN_METHODS = ("GET", "HEAD")
_METHODS = ("GET", "POST", "DELETE", "HEAD")
_BEARER = "bearer"


@dataclass(frozen=True)
class HttpRules:
    """What the door asks of everyone."""

    origins: OriginPolicy
    max_upload_bytes: int
    hosts: HostNames = field(default_factory=lambda: HostNames(is_checked=False))


def guarded(app: ASGIApp, access: Access, rules: HttpRules) -> ASGIApp:
    """Put the guard before an application."""
    guard = AccessMiddleware(app, access, rules)
    if not rules.origins.allowed:
        return guard
    # NOTE: any header may come, as browsers' SDKs send many of their own. Cookies, which would come along unasked,
    # mean nothing here.
    return CORSMiddleware(
        guard, allow_origins=rules.origins.allowed, allow_methods=_METHODS, allow_headers=("*",), expose_headers=("*",)
    )


class AccessMiddleware:
    """Admits known callers, and tells the code behind it who they are."""

    def __init__(self, app: ASGIApp, access: Access, rules: HttpRules) -> None:
        """Keep the application behind the door."""
        self._app = app
        self._access = access
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or serve one socket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._admit(scope)
        except AccessError as error:
            await refuse(scope, receive, send, error)
            return
        call_for(caller)  # each request and socket has a task of its own
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _BoundedBody(receive, send, self._rules.max_upload_bytes)
        try:
            body.check_announced(Headers(scope=scope).get("content-length"))
            await self._app(scope, body.receive, body.send)
        except UploadTooLargeError as error:
            if body.is_answered:
                raise
            await refuse(scope, receive, send, error)

    def _admit(self, scope: Scope) -> Caller:
        headers, method = Headers(scope=scope), scope.get("method")
        self._rules.origins.check(method, headers.get("origin"), headers.get("host"))
        self._rules.hosts.check(headers.get("host"))
        address = (scope.get("client") or (NOBODY,))[0]
        if method in _OPEN_METHODS and _is_open(scope["path"]):
            return Caller(address)
        return self._access.authenticate(presented_key(headers) if self._access.has_keys else None, address)


def presented_key(headers: Headers) -> bytes | None:
    """Return the key that came with a request, if one did: a bearer token, else ElevenLabs' header."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    key = token.strip() if scheme.lower() == _BEARER else headers.get("xi-api-key", "").strip()
    return key.encode("latin-1") or None


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


class _BoundedBody:
    """Counts a body on its way to the application."""

    def __init__(self, receive: Receive, send: Send, max_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._left = max_bytes
        self.is_answered = False

    def check_announced(self, content_length: str | None) -> None:
        """Refuse a body whose declared length is too long; the server checks the rest of the header."""
        if content_length is not None and content_length.isdecimal() and int(content_length[:20]) > self._max_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """Hand a message on.

        Raises:
            UploadTooLargeError: with it the body passes the limit.
        """
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        self.is_answered = True
        await self._send(message)

    def _too_large(self) -> UploadTooLargeError:
        return UploadTooLargeError(f"the request body passes {self._max_bytes} bytes; send less at once")


async def refuse(scope: Scope, receive: Receive, send: Send, error: GatewayError) -> None:
    """Answer an HTTP request or a WebSocket's handshake with an error; nothing may have been answered before."""
    response = refusal(scope, error)
    if scope["type"] == "websocket":
        await refuse_socket(WebSocket(scope, receive, send), response)
    else:
        await response(scope, receive, send)
