"""The OpenAI dialect over HTTP: POST /v1/audio/speech, and the list of models.

Parses and refuses, then hands the text to the pipeline. Audio is not paced: a client that turns away hangs up, and one
that reads slowly holds the pipeline back. It is bare, or in server-sent events:

    data: {"type":"speech.audio.delta","audio":"<base64>"}         any number
    data: {"type":"speech.audio.words","words":[{...}]}            where asked for, behind the audio that they end in
    data: {"type":"speech.audio.done","usage":{...},...}           all is said
    data: {"type":"error","error":{...}}                           or this, and the connection breaks

Clients that were seen ignore the error's event, so that only a broken connection tells them that speech is missing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import Path
from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.audio import AsyncEncoder, AudioEncoder, OutputFormat
from gateway.audio.formats import AUDIO_TYPES
from gateway.core import AudioChunk, FloatArray
from gateway.dialects.answers import StreamedAnswer, ignored_headers, read_body, warning_headers
from gateway.dialects.endpoints import Door, Endpoint
from gateway.dialects.openai.errors import described, error_object
from gateway.dialects.openai.request import OpenAISpeech, SpeechBody, StreamFormat, read_request
from gateway.errors import GatewayError
from gateway.host import Host
from gateway.speech.request import REQUEST_ID, SpeechRequest, SpeechResult
from gateway.speech.speech_job import warning_field
from gateway.speech.text_clock import TextClock, WordGatherer, WordTime
from llm_service.vocab import INLINE_TAGS
from token2wav_service.contract import SAMPLE_RATE_HZ

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
_EVENT_STREAM = "text/event-stream"
_NOT_FOUND = 404
_STARTED_S = int(time.time())
_HEAD_SAMPLES = SAMPLE_RATE_HZ // 10
"""Samples encoded first, so that the first bytes need not wait until the codec has all of the first chunk."""
_MAX_DELTA_BYTES = 24 * 1024
"""Most bytes of audio in one event, half a second of PCM: some clients read lines of 64 KiB at most."""


async def speak(request: Request) -> StreamedAnswer:
    """Answer with the speech of a text."""
    host: Host = request.app.state.host
    given = request.headers.get("x-request-id", "")
    request_id = request.scope["request_id"] = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    parse = partial(read_request, default=host.default_format, request_id=request_id)
    wanted = await read_body(request, host.limits.max_body_bytes, "input", parse)
    result = SpeechResult()
    if wanted.stream_format is StreamFormat.SSE:
        body = audio_events(host, wanted, result)
    else:
        body = bare_audio(host, wanted.speech, wanted.output, wanted.speed, result)
    return StreamedAnswer(
        body,
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


async def bare_audio(
    host: Host,
    wanted: SpeechRequest,
    output: OutputFormat,
    speed: float,
    result: SpeechResult,
    words: list[WordTime] | None = None,
) -> AsyncGenerator[bytes]:
    """Yield the bytes of one text's speech; pieces may be empty.

    Args:
        host: has the pipeline.
        wanted: what to speak.
        output: format of the bytes.
        speed: times as fast as normal.
        result: filled in on the way.
        words: gets those that have ended, if they are wanted.

    Raises:
        GatewayError: see `Speaker.synthesize`; or the format or speed can't be had here.
    """
    times, samples = None if words is None else (TextClock(result.spans), WordGatherer()), 0
    async with (
        AsyncEncoder(AudioEncoder(output, speed), host.executor) as encoder,
        aclosing(host.pipeline.synthesize(wanted, result)) as audio,
    ):
        async for chunk in audio:
            for piece in _pieces(chunk, is_whole=encoder.is_light):
                yield await encoder.encode(piece)
            if words is not None and times is not None:
                clock, gatherer = times
                samples += len(chunk.samples)
                ended = clock.read(samples / SAMPLE_RATE_HZ, chunk.is_last)
                words += gatherer.push(ended, is_end=chunk.is_last)
                yield b""
        yield await encoder.finish()


async def audio_events(host: Host, wanted: OpenAISpeech, result: SpeechResult) -> AsyncGenerator[bytes]:
    """Yield the speech as server-sent events.

    Raises:
        GatewayError: see `bare_audio`; if audio came before, an event has told of it.
    """
    is_started = False
    words: list[WordTime] | None = [] if wanted.has_word_times else None
    try:
        async with aclosing(bare_audio(host, wanted.speech, wanted.output, wanted.speed, result, words)) as pieces:
            async for piece in pieces:
                # One write for all: a client that separates chunks by time would see several in single events.
                parts = (piece[at : at + _MAX_DELTA_BYTES] for at in range(0, len(piece), _MAX_DELTA_BYTES))
                deltas = (base64.b64encode(part).decode() for part in parts)
                if piece:
                    yield b"".join(_event({"type": "speech.audio.delta", "audio": delta}) for delta in deltas)
                    is_started = True
                if words and is_started:
                    yield _event({"type": "speech.audio.words", "words": [word.told(wanted.speed) for word in words]})
                    words.clear()
    except GatewayError as error:
        if is_started:
            yield _event({"type": "error", "error": error_object(error)})
        raise
    usage = await asyncio.to_thread(_usage, result, host.encode_text)  # a long text takes its time
    done = {"type": "speech.audio.done", "usage": usage, "spoken_text": result.spoken_text}
    yield _event(done | warning_field(result))


def _usage(result: SpeechResult, encode_text: Callable[[str], list[int]]) -> dict[str, int]:
    """Count what a speech took: text as the LLM got it, without the voice's prompt, and speech tokens, 25 a second."""
    text, speech = sum(len(encode_text(span.segment.text)) for span in result.spans), result.speech_tokens
    return {"input_tokens": text, "output_tokens": speech, "total_tokens": text + speech}


def _pieces(chunk: AudioChunk, is_whole: bool) -> Iterator[FloatArray]:
    """Cut a little off the first chunk's beginning, unless all `is_whole`; chunks without samples have no pieces."""
    head_samples = _HEAD_SAMPLES if chunk.index == 0 and not is_whole else 0
    for samples in (chunk.samples[:head_samples], chunk.samples[head_samples:]):
        if len(samples):
            yield samples


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


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


def _a_speech(body: SpeechBody) -> None: ...
def _a_model(model: Annotated[str, Path(description="Name of the model.")]) -> None: ...


_MODEL = {"id": MODEL_ID, "object": "model", "created": 0, "owned_by": MODEL_ID}
_ONE_MODEL = f"{MODELS_PATH}/{{model:path}}"
_OURS = Door.OPENAI

ROUTES: list[BaseRoute] = [
    Endpoint(
        *("POST", PATH, speak, _OURS),
        "Speak a text; the audio is sent while it is made. With `stream_format: sse` in server-sent events.",
        takes=_a_speech,
        media_types=(*AUDIO_TYPES, _EVENT_STREAM),
        headers=SPEECH_HEADERS,
        speaks=True,
    ),
    Endpoint(
        *("GET", MODELS_PATH, list_models, _OURS),
        "List the models; there is one.",
        example={"object": "list", "data": [_MODEL]},
    ),
    Endpoint("GET", _ONE_MODEL, show_model, _OURS, "Show the model.", takes=_a_model, example=_MODEL),
]
