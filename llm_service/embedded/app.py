"""The embedded server's HTTP face: OpenAI's completions by token ids, /v1/models, /health and /metrics.

Knows nothing of models or batching; the engine loop is passed in.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from llm_service.embedded.generation import ClientDisconnected, Generation, run_unless_disconnected
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.responses import CONTENT_TYPE, DONE_EVENT, AnswerShape, error_body, metrics_text, sse_event
from llm_service.embedded.schema import CompletionRequest, RequestRefused, parse_request
from llm_service.embedded.types import GenerationRequest, SamplingParams
from llm_service.errors import EngineError, InvalidGenerationError, QueueFullError
from servicekit.tracing import NULL_TRACER, TRACEPARENT, Tracer

logger = logging.getLogger(__name__)

FIXED_BODY_BYTES = 64 * 1024
"""Most bytes of a request beside the prompt."""
BODY_BYTES_PER_TOKEN = 32
"""Bytes for each token of the longest prompt: an id takes 8 with its comma and blank."""
SEED_BITS = 63
HTTP_CLIENT_CLOSED_REQUEST = 499


class SpeechLMServer:
    """What the endpoints share."""

    def __init__(
        self,
        loop: EngineLoop,
        model_name: str,
        wall_clock: Callable[[], float],
        tracer: Tracer = NULL_TRACER,
    ) -> None:
        """Take a running engine loop; `wall_clock` gives seconds since 1970 for `created`."""
        self.tracer = tracer
        self.loop = loop
        self.model_name = model_name
        self._wall_clock = wall_clock
        self._max_body_bytes = FIXED_BODY_BYTES + BODY_BYTES_PER_TOKEN * loop.max_sequence_tokens

    def close(self) -> None:
        """Stop the engine loop."""
        self.loop.stop()
        self.tracer.close()

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        fields = parse_request(await _read_body(request, self._max_body_bytes))
        if fields.model is not None and fields.model != self.model_name:
            message = f"model {fields.model!r} is not served here; {self.model_name!r} is"
            raise RequestRefused(message, param="model", code="model_not_found", status=404)
        prompt_ids, request_id = tuple(fields.prompt), f"cmpl-{secrets.token_hex(12)}"
        shape = AnswerShape(request_id, self.model_name, self._now(), len(prompt_ids))
        params = _sampling_params(fields, self.loop.max_sequence_tokens - len(prompt_ids))
        span = self.tracer.begin(f"POST {request.url.path}", request.headers.get(TRACEPARENT))
        span.note(request_id=request_id)
        generation = Generation(self.loop, GenerationRequest(request_id, prompt_ids, params, span.trace_id), span)
        generation.start()
        if fields.stream:
            return AnswerStream(generation, shape)
        try:
            return JSONResponse(shape.whole(await run_unless_disconnected(request.receive, generation.whole())))
        finally:
            generation.abort()

    async def models(self) -> dict[str, Any]:
        """GET /v1/models."""
        model = {"id": self.model_name, "object": "model", "created": self._now(), "owned_by": "llm_service"}
        return {"object": "list", "data": [model]}

    def _now(self) -> int:
        return int(self._wall_clock())


class AnswerStream(StreamingResponse):
    """Streams an answer as server-sent events; its end, and a client that leaves, abort the generation."""

    def __init__(self, generation: Generation, shape: AnswerShape) -> None:
        super().__init__(
            self._events(generation, shape), headers={"cache-control": "no-cache"}, media_type="text/event-stream"
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.abort()

    async def _events(self, generation: Generation, shape: AnswerShape) -> AsyncIterator[bytes]:
        try:
            async for output in generation.outputs():
                yield sse_event(shape.chunk(output))
        except EngineError as err:
            yield sse_event(error_body(str(err), err.kind))
        yield DONE_EVENT


Door = Callable[[], AbstractAsyncContextManager[object]]


def create_app(server: SpeechLMServer, door: Door = nullcontext) -> FastAPI:
    """Make the ASGI app; stopping it stops the engine loop.

    Args:
        server: with a running loop.
        door: opened while the app runs: the lean stream of tokens, if it is to be served.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with door():
            yield
        server.close()

    app = FastAPI(title="Speech-token LLM", lifespan=lifespan, openapi_url=None)
    app.add_api_route("/v1/completions", server.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", server.models)

    @app.get("/health", response_model=None)
    async def health() -> Response:
        if server.loop.is_running and not server.loop.hangs:
            return JSONResponse({"status": "ready", "model": server.model_name})
        got = "hangs" if server.loop.is_running else "is not running"
        return JSONResponse(error_body(f"the engine {got}; see the log", "service_unavailable"), 503)

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return PlainTextResponse(metrics_text(server.loop), media_type=CONTENT_TYPE)

    _add_error_handlers(app)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestRefused)
    async def refused(_: Request, err: RequestRefused) -> Response:
        return JSONResponse(error_body(err.message, "invalid_request_error", err.param, err.code), err.status)

    @app.exception_handler(EngineError)
    async def engine_error(_: Request, err: EngineError) -> Response:
        code = "invalid_value" if isinstance(err, InvalidGenerationError) else None
        retry_s = err.retry_after_s if isinstance(err, QueueFullError) else 1.0
        headers = {"retry-after": str(math.ceil(retry_s))} if err.http_status in (429, 503) else None
        return JSONResponse(error_body(str(err), err.kind, code=code), err.http_status, headers)

    async def disconnected(_: Request, err: Exception) -> Response:
        return Response(status_code=HTTP_CLIENT_CLOSED_REQUEST)  # nobody reads it

    for kind in (ClientDisconnected, ClientDisconnect):  # in the answer, in the request's body
        app.add_exception_handler(kind, disconnected)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, err: HTTPException) -> Response:
        return JSONResponse(error_body(str(err.detail), "invalid_request_error"), err.status_code, err.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, err: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=err)
        return JSONResponse(error_body("internal error; see the server's log", "server_error"), 500)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise RequestRefused(f"the body is over {max_bytes} bytes; shorten it", code="too_large", status=413)
    return bytes(body)


def _sampling_params(fields: CompletionRequest, room_tokens: int) -> SamplingParams:
    """Fill in defaults; without max_tokens an answer may take all the room there is.

    Raises:
        RequestRefused: the answer must be longer than there is room.
    """
    if fields.min_tokens > max(room_tokens, 1):
        got = f"min_tokens is {fields.min_tokens}, and there is room for {room_tokens} tokens"
        raise RequestRefused(f"{got}; ask for fewer, or shorten the prompt", param="min_tokens")
    drawn_by = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    return SamplingParams(
        max_tokens=fields.max_tokens if fields.max_tokens is not None else max(room_tokens, 1),
        seed=fields.seed if fields.seed is not None else secrets.randbits(SEED_BITS),
        min_tokens=fields.min_tokens,
        stop_token_ids=frozenset(fields.stop_token_ids or ()),
        ignore_eos=fields.ignore_eos,
        allowed_token_ids=None if fields.allowed_token_ids is None else frozenset(fields.allowed_token_ids),
        **fields.model_dump(include=drawn_by, exclude_none=True),
    )
