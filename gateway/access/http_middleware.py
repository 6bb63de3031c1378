"""Checks the callers at the HTTP and WebSocket door, as plain ASGI that leaves streamed data unchanged.

    CORS ─► origin and host ─► key ─► application

Refuses before a byte of the body is read. `gateway.speech.speaker` holds callers to their limits on speech.

A browser sends forms and opens WebSockets to any address on behalf of any page, also to a gateway that only its own
machine can reach. It tells the page's origin then; programs that are no browsers tell none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.access.access import Access
from gateway.access.caller import NOBODY, Caller, call_for
from gateway.access.keys import key_of
from gateway.dialects.errors import refusal
from gateway.dialects.json_socket import refuse as refuse_socket
from gateway.errors import AccessError, ConfigError, ForeignHostError, ForeignOriginError

OPEN_PATHS = ("/", "/docs", "/openapi.json", "/health", "/healthz", "/readyz")
"""Paths that need no key for reading: probes, the interface's description, and the page, which asks for the key."""
OPEN_FOLDER = "/web/"
"""Path of the web page's files, which need no key."""
_OPEN_METHODS = ("GET", "HEAD")
_METHODS = ("GET", "POST", "DELETE", "HEAD")


ANY_ORIGIN = "*"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class HttpRules:
    """What the door asks of everyone: of which pages a request may be, and under which name it may come.

    Whoever owns a name can have it point to 127.0.0.1; a browser then takes the gateway's answers for that site's own
    and lets its pages read them. An address in place of a name can't be bent so.
    """

    allowed_origins: tuple[str, ...] = ()
    """Origins such as `https://app.example`, whose pages may ask beside the gateway's own; `*` is all."""
    trusts_names: bool = True
    """Whether a page is the gateway's own under any host name; without keys it must not be."""
    allowed_hosts: frozenset[str] | None = None
    """Names beside localhost and addresses, in small letters and without ports; None: every name is answered."""

    def check_origin(self, method: str | None, origin: str | None, host: str | None) -> None:
        """Refuse what a foreign page asks; reading is left to CORS, which keeps answers from it.

        Args:
            method: HTTP's; None for a WebSocket.

        Raises:
            ForeignOriginError: the page is neither ours nor listed.
        """
        if origin is None or method in _SAFE_METHODS or self._is_allowed(origin, host):
            return
        got = f"a page of {origin[:_SHOWN_CHARACTERS]!r} asks, which is not this server's own"
        raise ForeignOriginError(f"{got}; the operator can allow it with --allowed-origin")

    def _is_allowed(self, origin: str, host: str | None) -> bool:
        if ANY_ORIGIN in self.allowed_origins or origin in self.allowed_origins:
            return True
        parts = _split(origin)
        if parts is None or host is None or parts != _split(f"{origin.partition('://')[0]}://{host}"):
            return False
        return self.trusts_names or _is_fixed(parts[0])

    def check_host(self, host: str | None) -> None:
        """Refuse a request under a foreign name, by its header, which browsers always send.

        Raises:
            ForeignHostError: the name is neither listed nor this machine's.
        """
        if self.allowed_hosts is None or host is None:
            return
        parts = _split(f"http://{host}")
        if parts is None or not (_is_fixed(parts[0]) or parts[0] in self.allowed_hosts):
            got = f"asked as {host[:_SHOWN_CHARACTERS]!r}, which is not this machine's name"
            raise ForeignHostError(f"{got}; ask as localhost, or the operator can allow it with --allowed-host")


def check_origins(origins: Iterable[str]) -> None:
    """Check what an operator lists.

    Raises:
        ConfigError: something that is no origin.
    """
    for origin in origins:
        if origin != ANY_ORIGIN and not _is_origin(origin):
            raise ConfigError(f"got --allowed-origin {origin!r}, expected something like https://app.example")


def _is_origin(text: str) -> bool:
    return _split(text) is not None and text == text.lower() and text.count("/") == len("//")


@lru_cache(maxsize=256)
def _split(origin: str) -> tuple[str, int] | None:
    """Return host and port; None if there are none."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None


@lru_cache(maxsize=256)
def _is_fixed(host: str) -> bool:
    """Whether a host's address is in its name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def guarded(app: ASGIApp, access: Access, rules: HttpRules) -> ASGIApp:
    """Put the guard before an application."""
    guard = AccessMiddleware(app, access, rules)
    if not rules.allowed_origins:
        return guard
    # NOTE: any header may come, as browsers' SDKs send many of their own. Cookies, which would come along unasked,
    # mean nothing here.
    return CORSMiddleware(
        guard, allow_origins=rules.allowed_origins, allow_methods=_METHODS, allow_headers=("*",), expose_headers=("*",)
    )


class AccessMiddleware:
    """Admits known callers, and tells the code behind it who they are."""

    def __init__(self, app: ASGIApp, access: Access, rules: HttpRules) -> None:
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
            response = refusal(scope, error)
            if scope["type"] == "http":
                await response(scope, receive, send)
            else:
                await refuse_socket(WebSocket(scope, receive, send), response)
            return
        call_for(caller)  # each request and socket has a task of its own
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> Caller:
        headers, method = Headers(scope=scope), scope.get("method")
        self._rules.check_origin(method, headers.get("origin"), headers.get("host"))
        self._rules.check_host(headers.get("host"))
        address = (scope.get("client") or (NOBODY,))[0]
        if method in _OPEN_METHODS and _is_open(scope["path"]):
            return Caller(address)
        return self._access.authenticate(presented_key(headers) if self._access.has_keys else None, address)


def presented_key(headers: Headers) -> bytes | None:
    """Return the key that came with a request, if one did."""
    return key_of(headers.get("authorization", ""), headers.get("xi-api-key", "")).encode("latin-1") or None


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
