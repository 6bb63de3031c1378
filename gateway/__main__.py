"""`python -m gateway`: serve the HTTP door and the gRPC door until stopped."""

from __future__ import annotations

import logging
import sys
from functools import partial

import uvicorn

from cosydit.clock import SystemClock
from gateway.access.caller import CallerFilter
from gateway.access.http_middleware import guarded
from gateway.access.server_options import http_rules, uvicorn_options
from gateway.access.settings import open_access
from gateway.app import build_app, open_with_grpc
from gateway.config import parse_args
from gateway.errors import ConfigError

GRACE_S = 10
"""Seconds that streams under way may take to end after a stop signal."""
KEEP_ALIVE_S = 75
"""Longer than clients' pools keep an idle connection (httpx: 5 s), so that none is used just as it is closed."""


def main() -> int:
    """Read the settings and serve; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s caller=%(caller)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(CallerFilter())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    try:
        config = parse_args()
        access = open_access(config.access, SystemClock())
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    app = build_app(partial(open_with_grpc, config, access), config.max_body_bytes)
    server = uvicorn.Server(
        uvicorn.Config(
            guarded(app, access, http_rules(config.access)),
            host=config.host,
            port=config.port,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            **uvicorn_options(config.access),
        )
    )
    server.run()
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
