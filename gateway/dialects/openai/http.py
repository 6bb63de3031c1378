"""The OpenAI dialect over HTTP: POST /v1/audio/speech, and the list of models.

Parses and refuses, then hands the text to the pipeline. Audio is not paced: a client that turns away hangs up, and one
that reads slowly holds the pipeline back.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.dialects.common.answers import (
    Answer,
    StreamedAnswer,
    answering,
    ignored_headers,
    read_body,
    warning_headers,
)
from gateway.dialects.openai.errors import error_response, model_not_found
from gateway.dialects.openai.request import OpenAISpeech, StreamFormat, read_request
from gateway.dialects.openai.speech import audio_events, bare_audio
from gateway.host import Host
from gateway.speech.request import SpeechResult
from llm_service.vocab import INLINE_TAGS

PATH = "/v1/audio/speech"
MODELS_PATH = "/v1/models"
MODEL_ID = "cosydit"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_EVENT_STREAM = "text/event-stream"
_NO_CONTENT = 204


def routes(host: Callable[[], Host], max_body_bytes: int) -> list[BaseRoute]:
    """Return the routes, ready to be added to an application.

    Args:
        host: where to find what to speak with, once the application has started.
        max_body_bytes: largest request body accepted.
    """

    async def speak(request: Request) -> Answer:
        request_id = _request_id(request)

        async def answer(request: Request) -> Answer:
            return _answer(host(), await read_body(request, max_body_bytes, "input"), request_id)

        return await answering(answer, lambda error: error_response(error, request_id))(request)

    return [
        Route(PATH, speak, methods=["POST"]),
        options_route(PATH, "POST"),
    ]


def options_route(path: str, methods: str) -> Route:
    """Return the route that answers OPTIONS: `methods` is what else may be asked of the path."""

    async def allow(request: Request) -> Response:
        return Response(status_code=_NO_CONTENT, headers={"allow": f"{methods}, OPTIONS"})

    return Route(path, allow, methods=["OPTIONS"])


def model_routes(host: Callable[[], Host]) -> list[BaseRoute]:
    """Return the routes of the list of models: GET /v1/models and GET /v1/models/{model}. There is one model.

    It counts as created now, and tells what its checkpoint declares.
    """
    created = int(time.time())

    def model() -> dict[str, Any]:
        declared = host().declaration
        tags = INLINE_TAGS if declared.tags is None else declared.tags
        facts: dict[str, Any] = {"id": MODEL_ID, "object": "model", "created": created, "owned_by": MODEL_ID}
        facts |= {"name": declared.name, "family": declared.family}
        facts |= {"languages": declared.languages, "tags": tags}
        return facts | {"instruct": declared.instruct, "phonemes": declared.phonemes}

    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model()]})

    async def show_model(request: Request) -> Response:
        return _shown(request.path_params["model"], model())

    one = f"{MODELS_PATH}/{{model:path}}"
    return [
        Route(MODELS_PATH, list_models, methods=["GET"]),
        Route(one, show_model, methods=["GET"]),
        options_route(MODELS_PATH, "GET, HEAD"),
        options_route(one, "GET, HEAD"),
    ]


def _answer(host: Host, raw: bytes, request_id: str) -> StreamedAnswer:
    wanted = read_request(raw, host.default_format, request_id)
    make = audio_events if wanted.stream_format is StreamFormat.SSE else bare_audio
    result = SpeechResult()
    return StreamedAnswer(
        make(host, wanted, result),
        _headers(wanted, host),
        lambda error: error_response(error, request_id),
        request_id,
        host.limits.reader_timeout_s,
        lambda: warning_headers(result),
    )


def _headers(wanted: OpenAISpeech, host: Host) -> dict[str, str]:
    is_sse = wanted.stream_format is StreamFormat.SSE
    headers = {
        "content-type": _EVENT_STREAM if is_sse else wanted.output.audio_format.media_type,
        "x-request-id": wanted.speech.request_id,
        "x-sample-rate": str(wanted.output.sample_rate_hz),
        "x-seed": str(wanted.speech.seed),
        "cache-control": "no-store",
        "x-accel-buffering": "no",  # nginx in between would wait for 8 KiB
    }
    ignored = (*host.pipeline.front_end.ignored(wanted.speech.text_options), *wanted.ignored_fields)
    return headers | ignored_headers(ignored)


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _shown(name: str, model: dict[str, Any]) -> Response:
    return JSONResponse(model) if name == MODEL_ID else model_not_found(name, MODEL_ID)
