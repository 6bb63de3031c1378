"""The OpenAI dialect over HTTP: POST /v1/audio/speech, and the list of models.

Parses and refuses, then hands the text to the pipeline. Audio is not paced: a client that turns away hangs up, and one
that reads slowly holds the pipeline back.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Annotated, Any

from fastapi import Path
from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.audio.formats import AUDIO_TYPES
from gateway.dialects.common.answers import StreamedAnswer, ignored_headers, read_body, warning_headers
from gateway.dialects.common.endpoints import Door, Endpoint
from gateway.dialects.openai.errors import ErrorBody, described
from gateway.dialects.openai.request import OpenAISpeech, SpeechBody, StreamFormat, read_request
from gateway.dialects.openai.speech import audio_events, bare_audio
from gateway.host import Host
from gateway.speech.request import SpeechResult
from llm_service.vocab import INLINE_TAGS

PATH = "/v1/audio/speech"
MODELS_PATH = "/v1/models"
MODEL_ID = "cosydit"

SPEECH_HEADERS = {
    "x-request-id": "The request's id in logs: the caller's own `x-request-id`, or one that the gateway made.",
    "x-seed": "The seed that the speech tokens were drawn with.",
    "x-sample-rate": "Samples a second of the audio.",
    "x-ignored-fields": "Names of fields of the body that changed nothing; only there if any did.",
    "x-language-warning": "The text is in a language that the checkpoint does not declare; only there if it is.",
    "x-voice-warning": "What may be wrong with the voice's recording or transcript; only there if anything is.",
    "x-speech-warning": "How the speech left its text; only there if that shows before the answer begins.",
}
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_EVENT_STREAM = "text/event-stream"
_NO_CONTENT, _NOT_FOUND = 204, 404
_STARTED_S = int(time.time())


async def speak(request: Request) -> StreamedAnswer:
    """Answer with the speech of a text."""
    host: Host = request.app.state.host
    given = request.headers.get("x-request-id", "")
    request_id = request.scope["request_id"] = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    wanted = read_request(
        await read_body(request, host.limits.max_body_bytes, "input"), host.default_format, request_id
    )
    make = audio_events if wanted.stream_format is StreamFormat.SSE else bare_audio
    result = SpeechResult()
    return StreamedAnswer(
        make(host, wanted, result),
        _headers(wanted, host),
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
    return headers | ignored_headers(ignored) if ignored else headers


async def list_models(request: Request) -> Response:
    """List the one model."""
    return JSONResponse({"object": "list", "data": [_model(request.app.state.host)]})


async def show_model(request: Request) -> Response:
    """Show the model, if it is the one that was asked for."""
    if (name := request.path_params["model"]) == MODEL_ID:
        return JSONResponse(_model(request.app.state.host))
    message = f"got model {name!r}, the only one here is {MODEL_ID!r}"
    return JSONResponse(described(message, "model_not_found", "model"), _NOT_FOUND)


def _model(host: Host) -> dict[str, Any]:
    """Describe the model: it counts as created at the start, and has what its checkpoint declares."""
    declared = host.declaration
    tags = INLINE_TAGS if declared.tags is None else declared.tags
    facts: dict[str, Any] = {"id": MODEL_ID, "object": "model", "created": _STARTED_S, "owned_by": MODEL_ID}
    facts |= {"name": declared.name, "family": declared.family, "languages": declared.languages, "tags": tags}
    return facts | {"instruct": declared.instruct, "phonemes": declared.phonemes}


def options_route(path: str, methods: str) -> Route:
    """Return the route that answers OPTIONS: `methods` is what else may be asked of the path."""

    async def allow(request: Request) -> Response:
        return Response(status_code=_NO_CONTENT, headers={"allow": f"{methods}, OPTIONS"})

    return Route(path, allow, methods=["OPTIONS"])


def _a_speech(body: SpeechBody) -> None: ...
def _a_model(model: Annotated[str, Path(description="Name of the model.")]) -> None: ...


_MODEL = {"id": MODEL_ID, "object": "model", "created": 0, "owned_by": MODEL_ID}
_ONE_MODEL = f"{MODELS_PATH}/{{model:path}}"
_OURS = (Door.OPENAI, ErrorBody)

ROUTES: list[BaseRoute] = [
    Endpoint(
        *("POST", PATH, speak, *_OURS),
        "Speak a text; the audio is sent while it is made. With `stream_format: sse` in server-sent events.",
        takes=_a_speech,
        media_types=(*AUDIO_TYPES, _EVENT_STREAM),
        headers=SPEECH_HEADERS,
        speaks=True,
    ),
    options_route(PATH, "POST"),
    Endpoint(
        *("GET", MODELS_PATH, list_models, *_OURS),
        "List the models; there is one.",
        example={"object": "list", "data": [_MODEL]},
    ),
    Endpoint("GET", _ONE_MODEL, show_model, *_OURS, "Show the model.", takes=_a_model, example=_MODEL),
    options_route(MODELS_PATH, "GET, HEAD"),
    options_route(_ONE_MODEL, "GET, HEAD"),
]
