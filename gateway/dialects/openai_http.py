"""The OpenAI speech dialect over HTTP: POST /v1/audio/speech, answered as a stream of WAV or PCM.

Parses and refuses, then hands the text to the pipeline. Nothing is sent before the first audio exists, so an error
until then is a JSON body with its own status; a later one breaks the connection, so that no client takes half a text
for a whole one. A client that leaves cancels the pipeline at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum
from typing import Any

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from gateway.core import AudioChunk
from gateway.errors import GatewayError, InvalidRequestError, TextTooLongError, UnsupportedOptionError, wire_status
from gateway.pcm import streaming_wav_header, to_pcm16
from gateway.pipeline import SpeechPipeline
from gateway.speech import SpeechRequest, SpeechResult, decode_text
from token2wav_service.contract import DEFAULT_PRIORITY, SAMPLE_RATE_HZ

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NORMAL_SPEED = 1.0


class AudioFormat(str, Enum):
    """What `response_format` may be."""

    WAV = "wav"
    PCM = "pcm"
    """Signed 16-bit little endian, mono, 24 kHz, no header."""


class VoiceObject(BaseModel):
    """The object form of `voice`."""

    model_config = ConfigDict(extra="forbid")
    id: str


class SpeechBody(BaseModel):
    """The request body; `seed` and `priority` are ours, the rest is OpenAI's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    input: str
    voice: str | VoiceObject
    response_format: str = "wav"
    speed: float = _NORMAL_SPEED
    stream_format: str = "audio"
    instructions: str | None = None
    seed: int | None = None
    priority: int = DEFAULT_PRIORITY


class SpeechEndpoint:
    """The route, as an ASGI application."""

    def __init__(self, pipeline: Callable[[], SpeechPipeline], max_body_bytes: int) -> None:
        """Keep where to find the pipeline once the application has started."""
        self._pipeline = pipeline
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        request_id = _request_id(request)
        try:
            body = _parse(await _read_body(request, self._max_body_bytes))
            response: Response | SpeechAnswer = self._answer(body, request_id)
        except ClientDisconnect:
            return
        except GatewayError as error:
            response = error_response(error, request_id)
        await response(scope, receive, send)

    def _answer(self, body: SpeechBody, request_id: str) -> SpeechAnswer:
        audio_format = _check_options(body)
        voice = body.voice if isinstance(body.voice, str) else body.voice.id
        speech = SpeechRequest(body.input, voice, body.seed, body.priority, request_id=request_id)
        result = SpeechResult()
        return SpeechAnswer(self._pipeline().synthesize(speech, result), audio_format, result, request_id)


class SpeechAnswer:
    """Streams one pipeline run to one client, as an ASGI application."""

    def __init__(
        self,
        audio: AsyncGenerator[AudioChunk],
        audio_format: AudioFormat,
        result: SpeechResult,
        request_id: str,
    ) -> None:
        """Take over `audio`, which is closed on every way out."""
        self._audio = audio
        self._format = audio_format
        self._result = result
        self._request_id = request_id
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the audio ends, it fails, or the client leaves."""
        streaming = asyncio.create_task(self._stream(scope, receive, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not streaming.done():
                logger.info("request %s: the client left", self._request_id)
        finally:
            leaving.cancel()
            streaming.cancel()
            await asyncio.gather(leaving, streaming, return_exceptions=True)
        if not streaming.cancelled():
            streaming.result()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._audio) as audio:
                async for chunk in audio:
                    await self._send_samples(send, chunk)
        except GatewayError as error:
            logger.warning("request %s failed: %s: %s", self._request_id, error.code, error)
            if self._is_started:
                raise
            await error_response(error, self._request_id)(scope, receive, send)
        else:
            await self._end(send)

    async def _send_samples(self, send: Send, chunk: AudioChunk) -> None:
        if not len(chunk.samples):
            return
        if not self._is_started:
            await self._start(send)
        await send({"type": "http.response.body", "body": to_pcm16(chunk.samples), "more_body": True})

    async def _end(self, send: Send) -> None:
        if not self._is_started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._is_started = True
        headers = {
            "content-type": f"audio/{self._format.value}",
            "x-request-id": self._request_id,
            "x-sample-rate": str(SAMPLE_RATE_HZ),
            "x-seed": str(self._result.seed),
            "cache-control": "no-store",
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        start: Message = {"type": "http.response.start", "status": 200, "headers": encoded}
        await send(start)
        if self._format is AudioFormat.WAV:
            header = streaming_wav_header(SAMPLE_RATE_HZ)
            await send({"type": "http.response.body", "body": header, "more_body": True})


def error_response(error: GatewayError, request_id: str | None = None) -> JSONResponse:
    """Make the OpenAI-shaped answer to an error."""
    status = wire_status(error)
    param = error.param if isinstance(error, InvalidRequestError) else None
    body = {"message": str(error), "type": status.openai_type, "param": param, "code": status.code}
    headers = {"x-request-id": request_id} if request_id else None
    return JSONResponse({"error": body}, status.http, headers)


def _check_options(body: SpeechBody) -> AudioFormat:
    if body.speed != _NORMAL_SPEED:
        raise UnsupportedOptionError(f"got speed {body.speed}, only 1.0 is supported", param="speed")
    if body.stream_format != "audio":
        got = f"got stream_format {body.stream_format!r}, only 'audio' is supported"
        raise UnsupportedOptionError(got, param="stream_format")
    if body.instructions:
        raise UnsupportedOptionError("instructions are not supported; leave them out", param="instructions")
    try:
        return AudioFormat(body.response_format)
    except ValueError as error:
        supported = ", ".join(audio_format.value for audio_format in AudioFormat)
        got = f"got response_format {body.response_format!r}, supported are {supported}"
        raise UnsupportedOptionError(got, param="response_format") from error


def _parse(raw: bytes) -> SpeechBody:
    try:
        return SpeechBody.model_validate_json(decode_text(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        message = f"{where or 'body'}: {first['msg']}; send JSON with model, input and voice"
        raise InvalidRequestError(message, param=where) from error


async def _read_body(request: Request, max_bytes: int) -> bytes:
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > max_bytes:
            raise TextTooLongError(f"the request body passes {max_bytes} bytes; send less text", param="input")
    return bytes(parts)


async def _disconnected(receive: Receive) -> None:
    message: dict[str, Any] | Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
