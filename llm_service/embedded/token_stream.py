"""The lean stream of tokens: one gRPC method over the same engine as the HTTP face, with packed speech ids.

Knows the engine's loop and its own messages (proto/tts_api/llm/v1); nothing of HTTP, text or tokenizers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any

import grpc
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from llm_service.embedded.generation import Generation
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.types import (
    DEFAULT_PRIORITY,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingParams,
)
from llm_service.errors import (
    DeadlineExceededError,
    EngineError,
    EngineStoppedError,
    InvalidGenerationError,
    QueueFullError,
)
from servicekit.clock import Clock
from servicekit.trace_context import TRACEPARENT
from servicekit.tracing import NULL_TRACER, Tracer

logger = logging.getLogger(__name__)

SERVICE_NAME = "tts_api.llm.v1.SpeechTokenService"
LEAST_PRIORITY = 10
MAX_SCALE = 10.0
"""Of temperature and repetition penalty."""
SEED_BITS = 63
BREATH_S = 0.0001
"""Pause after a message, for each answer under way: tokens drawn meanwhile travel together, so that a burst of calls is
not held up by its own messages. A call alone does not notice it."""
MANY_ANSWERS = 8
_STATUS = (
    (InvalidGenerationError, grpc.StatusCode.INVALID_ARGUMENT),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (EngineStoppedError, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceededError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (EngineError, grpc.StatusCode.INTERNAL),
)
_REASONS = {
    None: messages.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: messages.FINISH_REASON_STOP,
    FinishReason.LENGTH: messages.FINISH_REASON_LENGTH,
}


class SpeechTokenServicer(stubs.SpeechTokenServiceServicer):  # type: ignore[misc]
    """Answers calls from one engine loop."""

    def __init__(self, loop: EngineLoop, clock: Clock, tracer: Tracer = NULL_TRACER) -> None:
        """Take a running loop; `clock` is the engine's."""
        self._loop, self._clock, self._tracer = loop, clock, tracer
        self._under_way = 0

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # gRPC's name
        """See the interface."""
        span = self._tracer.begin(f"/{SERVICE_NAME}/Generate", dict(context.invocation_metadata()).get(TRACEPARENT))
        request_id = f"grpc-{secrets.token_hex(12)}"
        span.note(request_id=request_id)
        generation: Generation | None = None
        try:
            asked = self._asked(request, request_id, context.time_remaining(), span.trace_id)
            generation = Generation(self._loop, asked, span)
            generation.start()
            self._under_way += 1
            async for pack in generation.packs():
                ids = _speech_ids(pack, self._loop.speech_ids)
                reason = pack[-1].finish_reason
                if ids or reason is not None:
                    yield messages.GenerateResponse(speech_ids=ids, finish_reason=_REASONS[reason])
                if self._under_way > MANY_ANSWERS and reason is None:
                    await asyncio.sleep(self._under_way * BREATH_S)
        except EngineError as err:
            status = next(code for kind, code in _STATUS if isinstance(err, kind))
            await context.abort(status, str(err))
        finally:
            if generation is not None:
                self._under_way -= generation.has_started
                generation.abort()

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
        )


def _speech_ids(pack: list[GenerationOutput], llm_ids: range) -> list[int]:
    """Return the speech ids, from 0 on, of outputs; end tokens are left out."""
    first = llm_ids.start
    return [token - first for output in pack for token in output.token_ids if token in llm_ids]


def _sampling(given: Any) -> dict[str, Any]:
    """Read the sampling settings; the message is whole if it is there."""
    _require("temperature", given.temperature, 0.0, MAX_SCALE)
    _require("min_p", given.min_p, 0.0, 1.0)
    for name, highest in (("top_p", 1.0), ("repetition_penalty", MAX_SCALE)):
        value = getattr(given, name)
        if not 0.0 < value <= highest:
            raise InvalidGenerationError(f"{name} is {value}; expected more than 0 and at most {highest:g}")
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {name: getattr(given, name) for name in names}


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidGenerationError(f"{name} is {value:g}; expected {low:g}..{high:g}")


def add_to(server: Any, servicer: SpeechTokenServicer) -> None:
    """Add the service to a gRPC server."""
    stubs.add_SpeechTokenServiceServicer_to_server(servicer, server)
