"""One process that serves the gateway's doors: the HTTP server with all that stands behind it, until it is stopped."""

from __future__ import annotations

import logging
import signal
from functools import partial

import uvicorn

from gateway.access.http_middleware import guarded
from gateway.access.settings import http_rules, open_access, uvicorn_options
from gateway.app import open_with_ports
from gateway.config import HTTP_GRACE_S, GatewayConfig
from gateway.dialects.json_socket import quiet_refusals
from gateway.doors.http import build_app
from gateway.errors import ConfigError
from gateway.lifecycle.shutdown import ACCEPTED_AT_ONCE, DrainingServer
from gateway.processes.ports import open_port
from gateway.processes.worker import LEAVE, Worker
from gateway.telemetry.doors import TelemetryMiddleware
from gateway.telemetry.telemetry import open_telemetry
from servicekit.clock import SystemClock
from servicekit.process import (
    exempt_startup_objects,
    failing_plainly,
    raise_open_files,
    take_turns_often,
)

logger = logging.getLogger(__name__)

FILES_A_CONNECTION = 6
"""Sockets for each connection that a door may have: HTTP, Wyoming, and gRPC, which takes three, and services."""
KEEP_ALIVE_S = 75
"""Seconds that an idle connection is kept: longer than clients' pools (httpx: 5 s), which must close first."""


def serve(config: GatewayConfig, worker: Worker | None) -> int:
    """Serve until stopped; return the exit status.

    Args:
        worker: what this process shares with the others of this gateway; None: it is alone.

    Raises:
        ConfigError: settings that can't work, found before any door is opened.
    """
    access = open_access(config.access, SystemClock(), worker.ledger if worker is not None else None)
    telemetry = open_telemetry(config.telemetry, SystemClock())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    quiet_refusals()
    take_turns_often()
    _open_many_files(config)
    registry = telemetry.metrics.registry
    if worker is not None:
        registry = worker.gathered(registry)
    app = build_app(
        partial(open_with_ports, config, access, telemetry, worker),
        registry if config.telemetry.is_at_the_door(access.has_keys) else None,
        on_warm=exempt_startup_objects,
    )
    door = TelemetryMiddleware(guarded(app, access, http_rules(config.access, config.host)), telemetry)
    server = DrainingServer(
        uvicorn.Config(
            failing_plainly(door, ConfigError, is_serving=lambda: server.started),
            host=config.host,
            port=config.port,
            log_config=None,
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=config.grace_s(HTTP_GRACE_S),  # type: ignore[arg-type]  # any number will do
            **uvicorn_options(config.access, access.connections),
        ),
        lambda: app.state.host.drain(),
        drain_s=config.drain_delay_s + config.drain_timeout_s,
        close_s=config.closing_s,
        ignores_interrupts=worker is not None,
    )
    if worker is not None:
        signal.signal(LEAVE, lambda number, frame: server.leave())
    bound = open_port(config.host, config.port, "--port", is_shared=worker is not None)
    server.run([*access.connections.listen(bound, "HTTP")])
    telemetry.tracer.close()
    return 0 if server.started else 1


def _open_many_files(config: GatewayConfig) -> None:
    """Raise the limit on open files; warn if the connections that may come do not fit."""
    connections = config.access.wire.max_connections
    allowed, wanted = raise_open_files(), FILES_A_CONNECTION * connections
    if allowed < wanted:
        got = f"this process may open {allowed} files, and {connections} connections need {wanted}"
        logger.warning("%s; raise the hard limit (ulimit -Hn)", got)
