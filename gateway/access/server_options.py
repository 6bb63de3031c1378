"""What the HTTP door and the server under it are told of origins, TLS and limits."""

from __future__ import annotations

from typing import Any

from gateway.access.http_middleware import HttpRules
from gateway.access.origins import OriginPolicy
from gateway.access.settings import AccessSettings


def http_rules(settings: AccessSettings) -> HttpRules:
    """Return the rules of `guarded`."""
    origins = OriginPolicy(settings.allowed_origins, trusts_names=settings.has_keys)
    return HttpRules(origins, settings.wire.max_upload_bytes)


def uvicorn_options(settings: AccessSettings) -> dict[str, Any]:
    """Return arguments of `uvicorn.Config`."""
    wire, tls = settings.wire, settings.tls
    options: dict[str, Any] = {
        # NOTE: the one of its parsers that bounds headers; they may pass the limit by what one read brings, 256 KiB.
        "http": "h11",
        "h11_max_incomplete_event_size": wire.max_header_bytes,
        "ws_max_size": wire.max_socket_message_bytes,
        "limit_concurrency": wire.max_connections,
        "server_header": False,
    }
    if tls is not None:
        options |= {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    return options
