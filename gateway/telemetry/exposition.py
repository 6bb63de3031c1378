"""Where metrics are read: a route of the HTTP door, or a port of their own, which also tells whether the loop turns.

The port is served by threads of its own, so that it answers while the doors are full and while the event loop stands
still: a task of the loop notes the time, and these threads compare. There are few of them: a connection above their
number takes the place of the oldest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import ConfigError
from servicekit.clock import Clock
from servicekit.tasks import running_meanwhile

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 1.0
MAX_SILENCE_S = 15.0
"""Seconds without a sign of the event loop after which it counts as dead: longer than a busy loop's pauses."""


@asynccontextmanager
async def beating(clock: Clock) -> AsyncIterator[Callable[[], float]]:
    """Have the running event loop beat until the context is left.

    Yields:
        What tells, in any thread, the seconds since the last beat.
    """
    last_s = clock.now()

    async def beat() -> None:
        nonlocal last_s
        while True:
            last_s = clock.now()
            await asyncio.sleep(BEAT_INTERVAL_S)

    async with running_meanwhile(beat(), "heartbeat"):
        yield lambda: clock.now() - last_s


PATH = "/metrics"
LIVE_PATH = "/livez"


def handler(registry: CollectorRegistry) -> Callable[[Request], Response]:
    """Return what answers GET /metrics at the HTTP door; NOTE: not `async`, so that it runs in a thread."""
    return lambda _: Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@contextmanager
def metrics_port(registry: CollectorRegistry, silence_s: Callable[[], float], host: str, port: int) -> Iterator[int]:
    """Serve GET /metrics, and GET /livez: 200 while the event loop beats, else 503.

    It serves until the context is left, and yields the port. `silence_s` tells, in any thread, the seconds since the
    last beat.

    Raises:
        ConfigError: the port can't be had.
    """
    try:
        server = _MetricsServer(host, port)
    except OSError as error:
        got = f"metrics can't be served on {host}:{port} ({error})"
        raise ConfigError(f"{got}; stop what listens there, or give another --metrics-port") from error
    server.set_app(_with_liveness(make_wsgi_app(registry), silence_s))
    thread = threading.Thread(target=server.serve_forever, name="metrics-port", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PEER_TIMEOUT_S)


MAX_CONNECTIONS = 32
"""Most connections of the metrics port, each with a thread; scrapers and probes need a few."""
PEER_TIMEOUT_S = 5.0
"""Seconds for each read and write of a connection there."""


class _Handler(WSGIRequestHandler):
    timeout = PEER_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, and never more than a few."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._open = OrderedDict[int, socket.socket]()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; above the limit the oldest makes room."""
        with self._lock:
            self._open[id(request)] = request
            oldest = self._open.popitem(last=False)[1] if len(self._open) > MAX_CONNECTIONS else None
            if oldest is not None:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds it closed
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(id(request), None)
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a peer that left or was too slow."""
        logger.debug("a connection to the metrics port broke off: %r", sys.exc_info()[1])


def _with_liveness(metrics: WSGIApplication, silence_s: Callable[[], float]) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != LIVE_PATH:
            return metrics(environ, start_response)
        status, told = HTTPStatus.OK, "ok"
        if (silent_s := silence_s()) > MAX_SILENCE_S:
            status, told = HTTPStatus.SERVICE_UNAVAILABLE, f"no beat for {silent_s:.0f} s"
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{told}\n".encode()]

    return app
