"""Hosts the gRPC dialects: one asynchronous server with health, reflection and message limits.

    TextToSpeechService ─┐
    RivaSpeechSynthesis ─┼─ Error-, Access-, Telemetry-, ResetInterceptor ── grpc.aio.Server ── grpc_front ── callers
    health, reflection ──┘

Calls that came to nothing are kept from holding memory: those that were reset, and those that were refused. gRPC keeps
the exception of a refused call with the call, and the exception's traceback leads back to it: what was sent would be
held until the collector of cycles runs.

A client may open and reset thousands of calls in a second (CVE-2023-44487). gRPC hands them over like all others, and
reading their message fails. grpcio loses 80 bytes with each such read (also in 1.85.3; grpc/grpc#43360), and these
keep the freed memory around them from going back to the kernel. Measured on one process: 240,000 such calls lost 11 MiB
and kept 240 MiB of freed memory. Calls that come more slowly begin at once: what a slow attacker could lose is a few KB
a second.

Knows nothing of HTTP or of how the gateway's parts are made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
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
from gateway.access.caller import CallerLimits
from gateway.access.grpc_interceptor import MAX_OPEN_CALLS, MAX_WATCHES, AccessInterceptor
from gateway.access.settings import TlsFiles
from gateway.dialects.grpc import riva_grpc, tts_grpc
from gateway.dialects.grpc.errors import ErrorInterceptor
from gateway.doors.grpc_front import SERVER_NAME, fronting
from gateway.errors import NotReadyError
from gateway.host import Host
from gateway.lifecycle.readiness import Readiness
from gateway.processes.ports import open_port, port_of
from gateway.telemetry.doors import TelemetryInterceptor
from gateway.telemetry.telemetry import Telemetry
from servicekit.tasks import running_meanwhile

logger = logging.getLogger(__name__)

DEFAULT_GRPC_PORT = 50051
"""Default port; Riva's clients expect it."""
DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
DEFAULT_MAX_CALLS = 1024
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
_add_tts: Callable[[tts_grpc.TextToSpeechServicer, grpc.aio.Server], None] = (
    tts_service_pb2_grpc.add_TextToSpeechServiceServicer_to_server
)
_add_riva: Callable[[riva_grpc.RivaServicer, grpc.aio.Server], None] = (
    riva_tts_pb2_grpc.add_RivaSpeechSynthesisServicer_to_server
)


@dataclass(frozen=True)
class GrpcSettings:
    """How the gRPC door is opened."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_GRPC_PORT
    """Port to listen on; 0 takes any free port."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Largest request message accepted."""
    grace_s: float = DEFAULT_GRACE_S
    """Seconds that calls under way may take to end when the door closes."""
    health_interval_s: float = 2.0
    """Pause between looks at whether the gateway can speak."""
    max_calls: int = DEFAULT_MAX_CALLS
    """Most calls at once that came with a key, or where none is needed."""
    message_s: float = 30.0
    """Seconds for the first message of a call."""
    tls: TlsFiles | None = None
    """Certificate and key; None: no TLS."""
    shares_port: bool = False
    """Whether other processes of this gateway serve the same port."""


@asynccontextmanager
async def serving_grpc(
    host: Host, settings: GrpcSettings, access: Access | None = None, telemetry: Telemetry | None = None
) -> AsyncIterator[int]:
    """Serve until the context is left, and yield the port.

    Args:
        host: the gateway behind the door; its owner closes it.
        settings: how the door is opened.
        access: decides who may come in, and counts connections; None: anyone.
        telemetry: is told of every call.

    Raises:
        ConfigError: another program listens on the port.
    """
    access = access or Access(None, CallerLimits(), host.clock)
    bound = open_port(settings.host, settings.port, "--grpc-port", is_shared=settings.shares_port)
    port, listeners = port_of(bound), access.connections.listen(bound, "gRPC")
    server, health = _make_server(host, settings, _interceptors(host, settings, access, telemetry))
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
    host: Host, settings: GrpcSettings, interceptors: list[grpc.aio.ServerInterceptor]
) -> tuple[grpc.aio.Server, health_aio.HealthServicer]:
    most_pending = _PENDING_TO_EACH * (settings.max_calls + MAX_OPEN_CALLS + MAX_WATCHES)
    options = (
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        # What a call holds before its message is asked for stays 64 KiB; measuring the network would make it 8 MiB.
        ("grpc.http2.bdp_probe", 0),
        # Calls that came and that our event loop has not seen yet, 15 KiB each; gRPC ends those beyond, with CANCELLED.
        ("grpc.server.max_pending_requests", most_pending),
        ("grpc.server.max_pending_requests_hard_limit", most_pending),
        # Pings find a peer that vanished, and what it used is freed.
        ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    )
    server = grpc.aio.server(interceptors=interceptors, options=options)
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


def _interceptors(
    host: Host, settings: GrpcSettings, access: Access, telemetry: Telemetry | None
) -> list[grpc.aio.ServerInterceptor]:
    """Return them from the outermost inwards."""
    max_string_bytes = max(_MIN_STRING_BYTES, _LONGEST_CHARACTER_BYTES * host.pipeline.settings.max_text_characters)
    interceptors: list[grpc.aio.ServerInterceptor] = [ResetInterceptor()]
    if telemetry is not None:
        interceptors.append(TelemetryInterceptor(telemetry))
    interceptors.append(AccessInterceptor(access, settings.max_calls, settings.message_s))
    return [*interceptors, ErrorInterceptor([*_SERVICES, _HEALTH, reflection.SERVICE_NAME], max_string_bytes)]


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


PAUSE_S = 0.001
"""Seconds in which a thread of gRPC tells the event loop of a reset: it does so only once a call is handed over."""
FREE_CALLS, _FREE_WITHIN_S = 32, 1.0
"""Calls within a time that begin without the pause."""


class ResetInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Waits where many calls come, so that gRPC cancels those that were reset; goes before all others."""

    def __init__(self) -> None:
        """Begin with no calls."""
        self._latest_s: deque[float] = deque(maxlen=FREE_CALLS)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        now_s = asyncio.get_running_loop().time()
        are_many = len(self._latest_s) == FREE_CALLS and now_s - self._latest_s[0] < _FREE_WITHIN_S
        self._latest_s.append(now_s)
        if are_many:
            await asyncio.sleep(PAUSE_S)
        handler = await continuation(handler_call_details)
        return None if handler is None else _forgetting(handler, handler_call_details.method)


def _forgetting(handler: Any, method: str) -> Any:
    behavior = handler.stream_stream or handler.stream_unary  # `access.grpc_interceptor` makes no others

    async def call(requests: Any, context: Any) -> Any:
        try:
            async with aclosing(aiter(requests)) as messages:  # left open, it leads back to the call as well
                return await behavior(messages, context)
        except grpc.aio.AbortError as error:
            error.__context__ = None
            del requests, messages, context
            raise error.with_traceback(None)  # noqa: B904
        except grpc.aio.InternalError as error:  # NOTE: gRPC raises this where nothing can be sent any more
            logger.info("%s: the caller left or its deadline passed (%s)", method, error)
            raise asyncio.CancelledError from None

    streams = handler.response_streaming
    make_handler = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make_handler(call, handler.request_deserializer, handler.response_serializer)
