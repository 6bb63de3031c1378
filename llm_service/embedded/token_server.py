"""Opens the port of the lean stream of tokens: the service, gRPC's health, and an end that lets answers finish."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from llm_service.embedded.token_stream import SERVICE_NAME, SpeechTokenServicer, add_to
from llm_service.errors import ConfigError

logger = logging.getLogger(__name__)

GRACE_S = 5.0
MAX_MESSAGE_BYTES = 1 << 20
"""A prompt of 100,000 ids takes 300 KB."""
_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 10_000


@asynccontextmanager
async def serving_tokens(servicer: SpeechTokenServicer, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the context is left, and yield the port.

    Args:
        servicer: with a running engine loop.
        host: address to bind.
        port: 0 takes any that is free.

    Raises:
        ConfigError: the port can't be had.
    """
    options = (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Two servers on one port would share its calls without a word.
        ("grpc.so_reuseport", 0),
        # A peer that vanished without a word is found out, and its slot is freed.
        ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_TIMEOUT_MS),
    )
    server = grpc.aio.server(options=options)
    add_to(server, servicer)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    try:
        bound = int(server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
    except RuntimeError as err:
        got = f"the stream of tokens can't listen on {host}:{port} ({err})"
        raise ConfigError(f"{got}; stop what listens there, or give another --grpc-port") from err
    for name in ("", SERVICE_NAME):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    logger.info("stream of tokens (gRPC) on %s:%d", host, bound)
    try:
        yield bound
    finally:
        await health.enter_graceful_shutdown()
        servicer.take_no_more()
        await server.stop(GRACE_S)
