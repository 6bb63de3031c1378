"""The pages at `/` and `/docs`: their files, and what they may offer here.

The files lie in gateway/web and go out as they are. They ask for nothing from elsewhere, and the Content-Security-
Policy lets nothing else in. Knows nothing of speech: the page itself talks to the other dialects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.audio import AudioEncoder, AudioFormat, parse_openai_format
from gateway.dialects.endpoints import Door, Endpoint
from gateway.errors import UnsupportedOptionError
from gateway.host import Host

FILES_PATH = "/web"
SETTINGS_PATH = f"{FILES_PATH}/settings.json"
API_PATH = "/docs"

_DIRECTORY = Path(__file__).parents[1] / "web"
_OFFERED = {"voice_creation": True, "max_recording_bytes": 10485760}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the served files, by suffix; other files of the directory are not served."""
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "media-src": "blob:",  # a new voice's recording, before it is sent
    "form-action": "'none'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}
_HEADERS = {
    "content-security-policy": "; ".join(f"{directive} {source}" for directive, source in _POLICY.items()),
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


async def settings(request: Request) -> Response:
    """Tell what the page may offer."""
    host: Host = request.app.state.host
    max_bytes = host.voices.limits.max_audio_bytes
    answer = {
        "voice_creation": max_bytes > 0,
        "lexicons": host.lexicons.names,
        "styles": host.pipeline.front_end.style_names,
        "max_recording_bytes": max_bytes,
        "formats": _formats(),
        "max_text_characters": host.pipeline.settings.max_text_characters,
    }
    return JSONResponse(answer, headers={**_HEADERS, "cache-control": "no-store"})


def routes() -> list[BaseRoute]:
    """Return the routes, ready to be added to an application; their files are read now.

    They carry nothing secret and are to stay open where an API key is needed: the page asks for the key.
    """
    html = ("text/html",)
    parts = [file for file in sorted(_DIRECTORY.iterdir()) if file.suffix in _MEDIA_TYPES and file.suffix != ".html"]
    page, api = (_serving(_DIRECTORY / name) for name in ("index.html", "docs.html"))
    return [
        Endpoint("GET", "/", page, Door.PAGE, "A page to type a text and hear it.", media_types=html),
        Endpoint("GET", API_PATH, api, Door.PAGE, "A page that shows this interface.", media_types=html),
        Endpoint("GET", SETTINGS_PATH, settings, Door.PAGE, "What the page may offer here.", example=_OFFERED),
        *(Route(f"{FILES_PATH}/{file.name}", _serving(file)) for file in parts),
    ]


@cache
def _formats() -> list[str]:
    """Return the formats that can be had here by one name each, WAV first."""
    found = []
    for kind in sorted(AudioFormat, key=lambda kind: kind is not AudioFormat.WAV):
        with suppress(UnsupportedOptionError):
            AudioEncoder(parse_openai_format(kind.value)).close()
            found.append(kind.value)
    return found


def _serving(file: Path) -> Callable[[Request], Awaitable[Response]]:
    """Make the handler of one file: whole, or 304 to a browser that has it."""
    content = file.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    headers = {**_HEADERS, "cache-control": "no-cache", "etag": tag}

    async def serve(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_MEDIA_TYPES[file.suffix], headers=headers)

    return serve
