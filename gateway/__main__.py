"""`python -m gateway`: serve the HTTP door and the gRPC door until stopped."""

from __future__ import annotations

import logging
import sys
from functools import partial

import uvicorn

from gateway.access.caller import CallerFilter
from gateway.access.http_middleware import guarded
from gateway.access.redaction import RedactingFilter
from gateway.access.settings import http_rules, open_access, uvicorn_options
from gateway.app import open_with_ports
from gateway.config import HTTP_GRACE_S, parse_args
from gateway.dialects.common.json_socket import quiet_refusals
from gateway.doors.http import build_app
from gateway.errors import ConfigError
from gateway.host import Host
from gateway.lifecycle.shutdown import DrainingServer
from gateway.telemetry.call import CallFilter
from gateway.telemetry.doors import TelemetryMiddleware
from gateway.telemetry.telemetry import open_telemetry
from servicekit.clock import SystemClock
from servicekit.logs import TEXT_FORMAT, LogFormat, configure_logging
from servicekit.process import exempt_startup_objects, failing_plainly, take_turns_often

KEEP_ALIVE_S = 75
"""Longer than clients' pools keep an idle connection (httpx: 5 s), so that none is used just as it is closed."""


def main() -> int:
    """Read the settings and serve; return the exit status."""
    try:
        config = parse_args()
        access = open_access(config.access, SystemClock())
        telemetry = open_telemetry(config.telemetry, SystemClock())
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    _log(config.telemetry.log_format)
    take_turns_often()
    registry = telemetry.metrics.registry
    app = build_app(
        partial(open_with_ports, config, access, telemetry),
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
    )
    server.run()
    telemetry.tracer.close()
    return 0 if server.started else 1


def _log(log_format: LogFormat) -> None:
    configure_logging(log_format, f"{TEXT_FORMAT} caller=%(caller)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(CallerFilter())
        handler.addFilter(CallFilter())
        handler.addFilter(RedactingFilter())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    quiet_refusals()


if __name__ == "__main__":
    sys.exit(main())
