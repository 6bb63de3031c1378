"""The HTTP and WebSocket door: one application with every dialect, probes, metrics, the page and their description.

    request ─► AccessMiddleware (gateway.access) ─► application ─► route of a dialect ─► Host ─► pipeline

Knows nothing of how the host's parts are made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.dialects import voices_http, web_page
from gateway.dialects.elevenlabs import account as elevenlabs_account
from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.elevenlabs import ws as elevenlabs_ws
from gateway.dialects.endpoints import Door, Endpoint, shown_of
from gateway.dialects.errors import shape_errors
from gateway.dialects.openai import http as openai_http
from gateway.dialects.speech_ws import socket as speech_ws
from gateway.host import Host
from gateway.telemetry import exposition
from servicekit.extras import installed_version
from servicekit.tasks import running_meanwhile

HostFactory = Callable[[], AbstractAsyncContextManager[Host]]
DOCUMENT_PATH = "/openapi.json"
_DESCRIPTIONS = {
    Door.OPENAI: "OpenAI's interface, for its clients and for whoever speaks HTTP.",
    Door.VOICES: "Creating, listing and deleting voices, with the fields of OpenAI's and vllm-omni's clients.",
    Door.ELEVENLABS: "ElevenLabs' interface, for its SDK, LiveKit and Pipecat.",
    Door.OMNI: "The WebSocket of vllm-omni's and sglang-omni's clients.",
    Door.GATEWAY: "Probes, metrics and this document.",
    Door.PAGE: "For browsers.",
}
_TEXT = ("text/plain",)
_OURS = (Door.GATEWAY,)

DIALECT_ROUTES: list[BaseRoute] = [
    *voices_http.ROUTES,
    *openai_http.ROUTES,
    *elevenlabs_ws.ROUTES,
    *elevenlabs_http.ROUTES,
    *elevenlabs_account.ROUTES,
    *speech_ws.ROUTES,
]
"""Routes of every dialect; they find the host as `state.host` of the application."""


def build_app(
    open_host: HostFactory,
    metrics: CollectorRegistry | None = None,
    on_warm: Callable[[], None] = lambda: None,
) -> Starlette:
    """Make the HTTP application; the host lives as long as the application runs.

    Args:
        open_host: makes the host when the application starts, e.g. `gateway.app.open_gateway` with its config bound.
        metrics: what GET /metrics tells; None: the application has no such path.
        on_warm: called once, after the first synthesis that worked.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_host() as host:
            app.state.host = host
            async with running_meanwhile(host.readiness.warm_up(on_warm)):
                yield

    async def show(request: Request) -> Response:
        return JSONResponse(content, headers={"cache-control": "no-cache"})

    app = Starlette(lifespan=lifespan)
    shape_errors(app)
    app.router.routes.extend([*_probes(), *DIALECT_ROUTES, *web_page.routes()])
    if metrics is not None:
        scraped = exposition.handler(metrics)
        app.router.routes.append(
            Endpoint("GET", exposition.PATH, scraped, *_OURS, "Metrics for Prometheus.", media_types=_TEXT)
        )
    shown = Endpoint("GET", DOCUMENT_PATH, show, *_OURS, "This interface as OpenAPI 3.1.", example={"openapi": "3.1.0"})
    app.router.routes.append(shown)
    content = document(app.routes, installed_version("cosydit") or "unknown", ".")
    return app


def document(routes: list[BaseRoute], version: str, server_url: str) -> dict[str, Any]:
    """Return the description of routes as an OpenAPI 3.1 document.

    Args:
        routes: those without a description of their own are left out.
        server_url: where they are, absolute or relative to the document.
    """
    api = get_openapi(
        title="cosydit gateway",
        version=version,
        routes=shown_of(routes),
        tags=[{"name": door.value, "description": text} for door, text in _DESCRIPTIONS.items()],
        servers=[{"url": server_url}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    api["security"] = [{}, {"bearer": []}, {"header": []}]
    api["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "xi-api-key"},
    }
    return api


def _probes() -> list[BaseRoute]:
    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        host: Host = request.app.state.host
        await host.readiness.check()
        return PlainTextResponse("ready\n")

    ready = "200 while speech can be made, else 503."
    return [
        Endpoint("GET", "/healthz", healthz, *_OURS, "200 while the door is open.", media_types=_TEXT),
        # Of the other name clients of other speech servers ask before they send a load.
        *(Endpoint("GET", path, readyz, *_OURS, ready, media_types=_TEXT) for path in ("/readyz", "/health")),
    ]
