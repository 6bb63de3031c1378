"""`python -m gateway`: serve the HTTP door and the gRPC door until stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial

import uvicorn

from gateway.access.access import Access
from gateway.access.caller import CallerFilter
from gateway.access.http_middleware import guarded
from gateway.access.redaction import RedactingFilter
from gateway.access.settings import http_rules, open_access, uvicorn_options
from gateway.app import open_with_ports
from gateway.config import HTTP_GRACE_S, GatewayConfig, parse_args
from gateway.dialects.common.json_socket import quiet_refusals
from gateway.doors.http import build_app
from gateway.errors import ConfigError
from gateway.host import Host
from gateway.lifecycle.shutdown import DrainingServer
from gateway.processes.parent import run_parent, seat_of
from gateway.processes.ports import open_shared
from gateway.processes.worker import Worker
from gateway.telemetry.call import CallFilter
from gateway.telemetry.doors import TelemetryMiddleware
from gateway.telemetry.telemetry import Telemetry, open_telemetry
from servicekit.clock import SystemClock
from servicekit.logs import TEXT_FORMAT, LogFormat, ProcessFilter, configure_logging
from servicekit.process import exempt_startup_objects, failing_plainly, take_turns_often

PARENT = 0
"""Number of the parent in logs; its workers count from 1."""
KEEP_ALIVE_S = 75
"""Longer than clients' pools keep an idle connection (httpx: 5 s), so that none is used just as it is closed."""


def main() -> int:
    """Read the settings and serve; return the exit status."""
    seat = seat_of(os.environ)
    worker = Worker(seat.number, seat.end, SystemClock()) if seat is not None else None
    try:
        config = parse_args()
        number = None if config.processes == 1 else worker.number if worker is not None else PARENT
        _log(config.telemetry.log_format, number)
        if config.processes > 1 and worker is None:
            return run_parent(config, sys.argv[1:])
        access = open_access(config.access, SystemClock(), worker.streams if worker is not None else None)
        telemetry = open_telemetry(config.telemetry, SystemClock())
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    return _serve(config, access, telemetry, worker)


def _serve(config: GatewayConfig, access: Access, telemetry: Telemetry, worker: Worker | None) -> int:
    take_turns_often()
    registry = telemetry.metrics.registry
    if worker is not None:
        registry = worker.gathered(registry)
    app = build_app(
        partial(open_with_ports, config, access, telemetry, worker),
        config.max_body_bytes,
        registry if config.telemetry.is_at_the_door(access.has_keys) else None,
        on_warm=exempt_startup_objects,
    )

    async def drain() -> None:
        host: Host = app.state.host
        if host.shutdown is not None:
            await host.shutdown.drain()

    door = TelemetryMiddleware(guarded(app, access, http_rules(config.access, config.host)), telemetry)
    server = DrainingServer(
        uvicorn.Config(
            failing_plainly(door, ConfigError),
            host=config.host,
            port=config.port,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=HTTP_GRACE_S,
            **uvicorn_options(config.access),
        ),
        drain,
        ignores_interrupts=worker is not None,
    )
    if worker is None:
        server.run()
    else:
        worker.on_leave = partial(setattr, server, "should_exit", True)
        worker.on_orphaned = partial(signal.raise_signal, signal.SIGTERM)
        server.run(open_shared(config.host, config.port))
    telemetry.tracer.close()
    return 0 if server.started else 1


def _log(log_format: LogFormat, process: int | None) -> None:
    shown = "" if process is None else " process=%(process_number)s"
    configure_logging(log_format, f"{TEXT_FORMAT} caller=%(caller)s{shown}")
    for handler in logging.getLogger().handlers:
        if process is not None:
            handler.addFilter(ProcessFilter(process))
        handler.addFilter(CallerFilter())
        handler.addFilter(CallFilter())
        handler.addFilter(RedactingFilter())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    quiet_refusals()


if __name__ == "__main__":
    sys.exit(main())
