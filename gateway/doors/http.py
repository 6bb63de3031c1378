"""The HTTP and WebSocket door: one application with every dialect, probes, metrics and the page.

    request ─► AccessMiddleware (gateway.access) ─► application ─► route of a dialect ─► Host ─► pipeline

Knows nothing of how the host's parts are made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from gateway.access.caller import caller_of
from gateway.dialects.elevenlabs import account as elevenlabs_account
from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.elevenlabs import ws as elevenlabs_ws
from gateway.dialects.http import voices_http, web_page
from gateway.dialects.http.errors import shape_other_errors
from gateway.dialects.openai import http as openai_http
from gateway.dialects.openai.errors import error_response
from gateway.dialects.speech_ws import socket as speech_ws
from gateway.doors import openapi
from gateway.errors import NotReadyError
from gateway.host import Host
from gateway.telemetry import exposition
from servicekit.tasks import running_meanwhile

HostFactory = Callable[[], AbstractAsyncContextManager[Host]]


def build_app(
    open_host: HostFactory,
    max_body_bytes: int,
    metrics: CollectorRegistry | None = None,
    on_warm: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Make the HTTP application; the host lives as long as the application runs.

    Args:
        open_host: makes the host when the application starts, e.g. `gateway.app.open_gateway` with its config bound.
        max_body_bytes: largest request body accepted.
        metrics: what GET /metrics tells; None: the application has no such path.
        on_warm: called once, after the first synthesis that worked.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_host() as host:
            app.state.host = host
            async with running_meanwhile(host.readiness.warm_up(on_warm)):
                yield

    app = FastAPI(title="cosydit gateway", lifespan=lifespan, openapi_url=None)
    shape_other_errors(app)

    def host() -> Host:
        opened: Host = app.state.host
        return opened

    _add_probes(app, host)
    app.router.routes.extend(exposition.routes(metrics) if metrics is not None else [])
    app.router.routes.extend([*dialect_routes(host, max_body_bytes), *web_page.routes(host)])
    app.router.routes.extend(openapi.routes(app.routes))
    return app


def dialect_routes(host: Callable[[], Host], max_body_bytes: int) -> list[BaseRoute]:
    """Return the routes of every dialect, ready to be added to an application.

    Args:
        host: returns the host, once the application has started.
        max_body_bytes: largest request body accepted.
    """
    return [
        *voices_http.routes(host, caller_of),
        *openai_http.routes(host, max_body_bytes),
        *openai_http.model_routes(host),
        *elevenlabs_ws.routes(host),
        *elevenlabs_http.routes(host, max_body_bytes),
        *elevenlabs_account.routes(host, caller_of),
        *speech_ws.routes(host),
    ]


def _add_probes(app: FastAPI, host: Callable[[], Host]) -> None:
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    async def readyz() -> Response:
        try:
            await host().readiness.check()
        except NotReadyError as error:
            return error_response(error)
        return PlainTextResponse("ready\n")

    app.add_api_route("/healthz", healthz, methods=["GET"])
    # The name that clients of other speech servers ask before they send a load; it means that speech can be made.
    app.add_api_route("/health", readyz, methods=["GET"])
    app.add_api_route("/readyz", readyz, methods=["GET"])
