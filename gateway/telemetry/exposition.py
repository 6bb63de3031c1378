"""Where metrics are read: a route of the HTTP door, or a port of their own.

The port is served by threads of its own, so that it answers while the doors are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.errors import ConfigError

PATH = "/metrics"


def routes(registry: CollectorRegistry) -> list[BaseRoute]:
    """Return the route of the HTTP door."""

    def metrics(_: Request) -> Response:  # NOTE: not `async`, so that it runs in a thread
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route(PATH, metrics, methods=["GET"])]


@contextmanager
def metrics_port(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve GET /metrics until the context is left, and yield the port.

    Raises:
        ConfigError: the port can't be had.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        got = f"metrics can't be served on {host}:{port} ({error})"
        raise ConfigError(f"{got}; stop what listens there, or give another --metrics-port") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
