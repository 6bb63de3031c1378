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

from llm_service.embedded.generation import Generation
from llm_service.embedded.interleaving import InterleavedPrompt
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.many_answers import REASONS, ManyAnswers, speech_ids
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
from servicekit.clock import Clock
from servicekit.tasks import cancel
from servicekit.tracing import NULL_TRACER, TRACEPARENT, Span, Tracer

logger = logging.getLogger(__name__)

SERVICE_NAME = "tts_api.llm.v1.SpeechTokenService"
LEAST_PRIORITY = 10
MAX_SCALE = 10.0
"""Largest temperature and largest repetition penalty."""
MAX_TOKENS_PER_S = 1e6
SEED_BITS = 63
BREATH_S = 0.0001
"""Pause after a message, for each answer under way: tokens drawn meanwhile travel together, so that a burst of calls is
not held up by its own messages. A call alone does not notice it."""
MANY_ANSWERS = 8
GRACE_S = 5.0
MAX_MESSAGE_BYTES = 1 << 20
"""Most bytes of a message; a prompt of 100,000 ids takes 300 KB."""
_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 10_000
_add: Callable[[Any, Any], None] = stubs.add_SpeechTokenServiceServicer_to_server  # the stubs have no types
_STATUS = (
    (InvalidGenerationError, grpc.StatusCode.INVALID_ARGUMENT),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LLMStoppedError, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceededError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (EngineError, grpc.StatusCode.INTERNAL),
)


class SpeechTokenServicer(stubs.SpeechTokenServiceServicer):
    """Answers calls from one engine loop."""

    def __init__(self, loop: EngineLoop, clock: Clock, tracer: Tracer = NULL_TRACER) -> None:
        """Take a running loop; `clock` is the engine's."""
        self._loop, self._clock, self._tracer = loop, clock, tracer
        self._under_way = 0
        self._streams: set[ManyAnswers] = set()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # gRPC's name
        """See the interface."""
        span = self._tracer.begin(f"/{SERVICE_NAME}/Generate", dict(context.invocation_metadata()).get(TRACEPARENT))
        request_id = f"grpc-{secrets.token_hex(12)}"
        span.note(request_id=request_id)
        generation: Generation | None = None
        try:
            if request.HasField("interleaved"):
                raise InvalidGenerationError(
                    "Generate takes no further text; ask for interleaved answers by GenerateMany"
                )
            asked = self._asked(request, request_id, context.time_remaining(), span.trace_id)
            generation = Generation(self._loop, asked, span)
            generation.start()
            self._under_way += 1
            async for pack in generation.packs():
                drawn = tuple(token for output in pack for token in output.token_ids)
                ids = speech_ids(drawn, self._loop.speech_ids)
                reason = pack[-1].finish_reason
                if ids or reason is not None:
                    yield messages.GenerateResponse(speech_ids=ids, finish_reason=REASONS[reason])
                if self._under_way > MANY_ANSWERS and reason is None:
                    await asyncio.sleep(self._under_way * BREATH_S)
        except EngineError as err:
            await context.abort(_status(err), str(err))
        finally:
            if generation is not None:
                self._under_way -= generation.has_started
                generation.abort()

    async def GenerateMany(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # gRPC's name
        """See the interface."""
        answers = ManyAnswers(self._loop, self._numbered, lambda error: int(_status(error).value[0]))
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
            return self._asked(asked.request, request_id, None, span.trace_id), span
        except InvalidGenerationError as error:
            span.end(error)
            raise

    def _asked(
        self, request: Any, request_id: str, remaining_s: float | None, trace_id: str | None
    ) -> GenerationRequest:
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
            deadline_s=None if remaining_s is None else self._clock.now() + remaining_s,
            continued_tokens=request.continued_tokens,
            wants_text=False,
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


def _status(error: EngineError) -> grpc.StatusCode:
    return next(code for kind, code in _STATUS if isinstance(error, kind))


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


def add_to(server: Any, servicer: SpeechTokenServicer) -> None:
    """Add the service to a gRPC server."""
    _add(servicer, server)


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
    add_to(server, servicer)
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
