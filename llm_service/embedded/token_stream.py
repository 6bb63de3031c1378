"""The lean stream of tokens: gRPC over the same engine as the HTTP face, with packed speech ids.

One method draws one answer, another many answers over one stream. `serving_tokens` opens the port: the service, gRPC's
health, and an end that lets answers finish.

Knows the engine's loop and its own messages (proto/tts_api/llm/v1); nothing of HTTP, text or tokenizers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from llm_service.embedded.interleaving import InterleavedPrompt
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.many_answers import ManyAnswers
from llm_service.embedded.schema import MIN_REPETITION_PENALTY
from llm_service.embedded.types import DEFAULT_PRIORITY, GenerationRequest, SamplingParams
from llm_service.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidGenerationError,
    LLMConfigError,
    LLMStoppedError,
    QueueFullError,
)
from servicekit.tasks import cancel
from servicekit.tracing import NULL_TRACER, TRACEPARENT, Span, Tracer

logger = logging.getLogger(__name__)

SERVICE_NAME = "tts_api.llm.v1.SpeechTokenService"
LEAST_PRIORITY = 10
MAX_SCALE = 10.0
"""Largest temperature and largest repetition penalty."""
MAX_TOKENS_PER_S = 1e6
SEED_BITS = 63
GRACE_S = 5.0
MAX_MESSAGE_BYTES = 1 << 20
"""Most bytes of a message; a prompt of 100,000 ids takes 300 KB."""
_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 10_000
add_to_server: Callable[[Any, Any], None] = stubs.add_SpeechTokenServiceServicer_to_server  # the stubs have no types
_STATUS = (
    (InvalidGenerationError, grpc.StatusCode.INVALID_ARGUMENT),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LLMStoppedError, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceededError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (EngineError, grpc.StatusCode.INTERNAL),
)
_STATUS_OF_CODE = {status.value[0]: status for _, status in _STATUS}


class SpeechTokenServicer(stubs.SpeechTokenServiceServicer):
    """Answers calls from one engine loop."""

    def __init__(self, loop: EngineLoop, tracer: Tracer = NULL_TRACER) -> None:
        """Take a running loop."""
        self._loop, self._tracer = loop, tracer
        self._streams: set[ManyAnswers] = set()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # gRPC's name
        """See the interface: one answer among many, over a stream of its own."""
        if request.HasField("interleaved"):
            said = "Generate takes no further text; ask for interleaved answers by GenerateMany"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, said)
        answers = ManyAnswers(self._loop, self._numbered, _code)
        traceparent = dict(context.invocation_metadata()).get(TRACEPARENT)
        answers.begin(messages.NumberedRequest(request=request, traceparent=traceparent))
        answers.take_no_more()
        try:
            async for response in answers.responses():
                for part in response.parts:
                    if part.HasField("failure"):
                        await context.abort(_STATUS_OF_CODE[part.failure.code], part.failure.message)
                    yield part.response
        finally:
            answers.cancel_all()

    async def GenerateMany(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # gRPC's name
        """See the interface."""
        answers = ManyAnswers(self._loop, self._numbered, _code)
        taking = asyncio.ensure_future(_take(requests, answers))
        self._streams.add(answers)
        try:
            async for response in answers.responses():
                yield response
        finally:
            self._streams.discard(answers)
            answers.cancel_all()
            cancel(taking)

    def take_no_more(self) -> None:
        """Have streams of many answers end when those under way have ended."""
        for answers in self._streams:
            answers.take_no_more()

    def room(self) -> dict[str, str]:
        """See `EngineLoop.room`."""
        return self._loop.room()

    def _numbered(self, asked: Any) -> tuple[GenerationRequest, Span]:
        """Read one request among many, and begin its span.

        Raises:
            InvalidGenerationError: a value is out of range.
        """
        span = self._tracer.begin(f"/{SERVICE_NAME}/GenerateMany", asked.traceparent or None)
        request_id = f"grpc-{secrets.token_hex(12)}"
        span.note(request_id=request_id)
        try:
            return self._asked(asked.request, request_id, span.trace_id), span
        except InvalidGenerationError as error:
            span.end(error)
            raise

    def _asked(self, request: Any, request_id: str, trace_id: str | None) -> GenerationRequest:
        """Read a request.

        Raises:
            InvalidGenerationError: a value is out of range.
        """
        room = self._loop.max_sequence_tokens - len(request.prompt_ids)
        most = request.max_tokens or max(room, 1)
        _require("min_tokens", request.min_tokens, 0, most)
        _require("priority", request.priority, 0, LEAST_PRIORITY)
        _require("tokens_per_s", request.tokens_per_s, 0, MAX_TOKENS_PER_S)
        params = SamplingParams(
            max_tokens=most,
            seed=request.seed if request.HasField("seed") else secrets.randbits(SEED_BITS),
            min_tokens=request.min_tokens,
            **(_sampling(request.sampling) if request.HasField("sampling") else {}),
        )
        return GenerationRequest(
            request_id,
            tuple(request.prompt_ids),
            params,
            trace_id,
            priority=request.priority or DEFAULT_PRIORITY,
            continued_tokens=request.continued_tokens,
            interleaved=_interleaved(request.interleaved) if request.HasField("interleaved") else None,
            tokens_per_s=request.tokens_per_s,
            head_start_tokens=request.head_start_tokens,
        )


class _Health(health_aio.HealthServicer):  # type: ignore[misc]
    """gRPC's health, which also tells how much room there is."""

    def __init__(self, room: Callable[[], dict[str, str]]) -> None:
        super().__init__()
        self._room = room

    async def Check(self, request: Any, context: Any) -> Any:  # gRPC's name
        context.set_trailing_metadata(tuple(self._room().items()))
        return await super().Check(request, context)


async def _take(requests: Any, answers: ManyAnswers) -> None:
    """Begin and cancel answers as messages come; when the caller's half has ended, those under way go on."""
    try:
        async for message in requests:
            answers.take(message)
    except Exception:
        logger.exception("a stream of many answers failed")
        answers.cancel_all()
    finally:
        answers.take_no_more()


def _code(error: EngineError) -> int:
    return int(next(status for kind, status in _STATUS if isinstance(error, kind)).value[0])


def _sampling(given: Any) -> dict[str, Any]:
    """Read the sampling settings; the message is whole if it is there."""
    _require("temperature", given.temperature, 0.0, MAX_SCALE)
    _require("min_p", given.min_p, 0.0, 1.0)
    _require("repetition_penalty", given.repetition_penalty, MIN_REPETITION_PENALTY, MAX_SCALE)
    if not 0.0 < given.top_p <= 1.0:
        raise InvalidGenerationError(f"top_p is {given.top_p}; expected more than 0 and at most 1")
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {name: getattr(given, name) for name in names}


def _interleaved(given: Any) -> InterleavedPrompt:
    return InterleavedPrompt(given.begin_tokens, given.transcript_tokens)


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidGenerationError(f"{name} is {value:g}; expected {low:g}..{high:g}")


@asynccontextmanager
async def serving_tokens(servicer: SpeechTokenServicer, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the context is left, and yield the port.

    Args:
        servicer: with a running engine loop.
        host: address to bind.
        port: 0 takes any that is free.

    Raises:
        LLMConfigError: the port can't be had.
    """
    options = (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Two servers on one port would share its calls, and nobody would notice.
        ("grpc.so_reuseport", 0),
        # Pings find a peer that vanished, and its slot is freed.
        ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_TIMEOUT_MS),
    )
    server = grpc.aio.server(options=options)
    add_to_server(servicer, server)
    health = _Health(servicer.room)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    try:
        bound = int(server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
    except RuntimeError as err:
        got = f"the stream of tokens can't listen on {host}:{port} ({err})"
        raise LLMConfigError(f"{got}; stop what listens there, or give another --grpc-port") from err
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
