"""Where metrics are read: a route of the HTTP door, or a port of their own, which tells of the event loop too.

The port is served by threads of its own, so that it answers while the doors are full and while the event loop stands
still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.errors import ConfigError
from gateway.telemetry.heartbeat import Heartbeat

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"
LIVE_PATH = "/livez"


def routes(registry: CollectorRegistry) -> list[BaseRoute]:
    """Return the route of the HTTP door."""

    def metrics(_: Request) -> Response:  # NOTE: not `async`, so that it runs in a thread
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route(PATH, metrics, methods=["GET"])]


@contextmanager
def metrics_port(registry: CollectorRegistry, heartbeat: Heartbeat, host: str, port: int) -> Iterator[int]:
    """Serve GET /metrics, and GET /livez: 200 while the event loop beats, else 503.

    It serves until the context is left, and yields the port.

    Raises:
        ConfigError: the port can't be had.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        got = f"metrics can't be served on {host}:{port} ({error})"
        raise ConfigError(f"{got}; stop what listens there, or give another --metrics-port") from error
    server.set_app(_with_liveness(server.get_app(), heartbeat))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _with_liveness(metrics: WSGIApplication | None, heartbeat: Heartbeat) -> WSGIApplication:
    assert metrics is not None

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != LIVE_PATH:
            return metrics(environ, start_response)
        status, told = HTTPStatus.OK, "ok"
        if not heartbeat.is_alive:
            status, told = HTTPStatus.SERVICE_UNAVAILABLE, f"no beat for {heartbeat.silence_s:.0f} s"
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{told}\n".encode()]

    return app
