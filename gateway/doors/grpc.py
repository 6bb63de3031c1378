"""Hosts the gRPC dialects: one asynchronous server with health, reflection and message limits.

    TextToSpeechService ─┐
    RivaSpeechSynthesis ─┼─ CallInterceptor ── grpc.aio.Server ── grpc_front ── callers
    health, reflection ──┘

Knows nothing of HTTP or of how the gateway's parts are made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection, reflection_pb2
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc

from gateway.access.access import Access
from gateway.access.connections import WireLimits
from gateway.access.grpc_access import MAX_OPEN_CALLS, MAX_WATCHES, GrpcAccess
from gateway.access.settings import TlsFiles
from gateway.dialects.grpc import riva_grpc, tts_grpc
from gateway.doors.grpc_calls import CallInterceptor
from gateway.doors.grpc_front import SERVER_NAME, fronting
from gateway.errors import NotReadyError
from gateway.host import Host
from gateway.lifecycle.readiness import Readiness
from gateway.processes.ports import open_port, port_of
from gateway.telemetry.telemetry import Telemetry
from servicekit.tasks import running_meanwhile

logger = logging.getLogger(__name__)

DEFAULT_GRPC_PORT = 50051
"""Default port; Riva's clients expect it."""
DEFAULT_GRACE_S = 10.0
_PENDING_TO_EACH = 3
"""Calls that may wait for the event loop, for each that may be under way: the others are refused with a reason."""
_MIN_STRING_BYTES = 1024 * 1024
"""Least bound of a string in a message, as of the body of an HTTP request."""
_LONGEST_CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8."""
_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 10_000
_SERVICES = (tts_grpc.SERVICE_NAME, riva_grpc.SERVICE_NAME)
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# The stubs have no types.
_add_tts: Any = tts_service_pb2_grpc.add_TextToSpeechServiceServicer_to_server
_add_riva: Any = riva_tts_pb2_grpc.add_RivaSpeechSynthesisServicer_to_server


@dataclass(frozen=True)
class GrpcSettings:
    """How the gRPC door is opened."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_GRPC_PORT
    """Port to listen on; 0 takes any free port."""
    grace_s: float = DEFAULT_GRACE_S
    """Seconds that calls under way may take to end when the door closes."""
    health_interval_s: float = 2.0
    """Pause between looks at whether the gateway can speak."""
    tls: TlsFiles | None = None
    """Certificate and key; None: no TLS."""
    shares_port: bool = False
    """Whether other processes of this gateway serve the same port."""


@asynccontextmanager
async def serving_grpc(host: Host, settings: GrpcSettings, access: Access, telemetry: Telemetry) -> AsyncIterator[int]:
    """Serve until the context is left, and yield the port.

    Args:
        host: the gateway behind the door; its owner closes it.
        access: decides who may come in, and bounds connections and what they send.

    Raises:
        ConfigError: another program listens on the port.
    """
    bound = open_port(settings.host, settings.port, "--grpc-port", is_shared=settings.shares_port)
    port, listeners = port_of(bound), access.connections.listen(bound, "gRPC")
    max_string_bytes = max(_MIN_STRING_BYTES, _LONGEST_CHARACTER_BYTES * host.pipeline.settings.max_text_characters)
    limits = access.connections.limits
    admitting = GrpcAccess(access, limits.max_connections, limits.body_timeout_s)
    interceptor = CallInterceptor(telemetry, admitting, max_string_bytes)
    server, health = _make_server(host, limits, interceptor)
    with TemporaryDirectory(prefix="cosydit-grpc-") as folder:
        server.add_insecure_port(f"unix:{folder}/{SERVER_NAME}")
        await _tell(health, await _status(host.readiness))
        await server.start()
        async with fronting(Path(folder), listeners, access.connections, settings.tls):
            logger.info("gRPC on %s:%d", settings.host, port)
            try:
                async with running_meanwhile(_watch(host.readiness, health, settings.health_interval_s)):
                    yield port
            finally:
                await health.enter_graceful_shutdown()
                await server.stop(settings.grace_s)


def _make_server(
    host: Host, limits: WireLimits, interceptor: CallInterceptor
) -> tuple[grpc.aio.Server, health_aio.HealthServicer]:
    most_pending = _PENDING_TO_EACH * (limits.max_connections + MAX_OPEN_CALLS + MAX_WATCHES)
    options = (
        ("grpc.max_receive_message_length", limits.max_grpc_message_bytes),
        # What a call holds before its message is asked for stays 64 KiB; measuring the network would make it 8 MiB.
        ("grpc.http2.bdp_probe", 0),
        # Calls that came and that our event loop has not seen yet, 15 KiB each; gRPC ends those beyond, with CANCELLED.
        ("grpc.server.max_pending_requests", most_pending),
        ("grpc.server.max_pending_requests_hard_limit", most_pending),
        # Pings find a peer that vanished, and what it used is freed.
        ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    )
    server = grpc.aio.server(interceptors=[interceptor], options=options)
    _add_tts(tts_grpc.TextToSpeechServicer(host), server)
    _add_riva(riva_grpc.RivaServicer(host), server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    shown = (*_SERVICES, _HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(shown, server, _shown_pool())
    return server, health


def _shown_pool() -> DescriptorPool:
    """Return one pool of all interfaces for reflection: Riva's are kept apart from everybody's."""
    pool, added = DescriptorPool(), set()

    def add(file: FileDescriptor) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for needed in file.dependencies:
            add(needed)
        pool.AddSerializedFile(file.serialized_pb)

    for module in (tts_service_pb2, riva_tts_pb2, health_pb2, reflection_pb2):
        add(module.DESCRIPTOR)
    return pool


async def _watch(readiness: Readiness, health: health_aio.HealthServicer, interval_s: float) -> None:
    """Keep health's answers true, for the server as a whole and for each service."""
    while True:
        await asyncio.sleep(interval_s)
        await _tell(health, await _status(readiness))


async def _tell(health: health_aio.HealthServicer, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
    for service in ("", *_SERVICES):
        await health.set(service, status)


async def _status(readiness: Readiness) -> health_pb2.HealthCheckResponse.ServingStatus:
    try:
        await readiness.check()
    except NotReadyError:
        return health_pb2.HealthCheckResponse.NOT_SERVING
    return health_pb2.HealthCheckResponse.SERVING
