"""ElevenLabs' HTTP routes that speak: whole texts in, audio out as it is made, bare or in JSON with characters' times.

Parses and refuses; everything else is the pipeline's. Audio is not paced here: a client that turns away hangs up.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.audio import AsyncEncoder, AudioEncoder, OutputFormat
from gateway.audio.formats import AUDIO_TYPES
from gateway.delivery import frames_of, timed
from gateway.dialects.answers import StreamedAnswer, checked_json, ignored_headers, read_body, warning_headers
from gateway.dialects.elevenlabs.wire import (
    LexiconLocatorFields,
    SpeechQuery,
    VoiceSettingsFields,
    locators_of,
    read_options,
    speed_of,
)
from gateway.dialects.endpoints import JSON, Door, Endpoint, VoiceName
from gateway.dialects.openai.http import bare_audio
from gateway.host import Host
from gateway.speech.request import SpeechRequest, SpeechResult, check_text, decode_text
from gateway.speech.text_clock import CharacterTime

PATH = "/v1/text-to-speech/{voice}"
_UNPROCESSABLE = 422


class ElevenLabsSpeechBody(BaseModel):
    """The body of a request; what else clients send has no meaning here."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    text: str
    """The text; at most 100,000 characters (`--max-text-characters`)."""
    model_id: str | None = None
    """Any name; with `eleven_v3` the gateway obeys audio tags such as `[whispers]` in the text."""
    language_code: str | None = None
    """BCP 47 tag such as `en` or `zh-CN`; by default it is guessed from the text."""
    apply_text_normalization: str | None = None
    """`auto` (default) and `on`: written forms become words; `off`: the text is spoken as it is written."""
    enable_ssml_parsing: bool | None = None
    """`true`: the text is SSML, or the content of a `<speak>` element; also as a parameter of the URL."""
    seed: int | None = None
    """0 to 2**63-1: the same seed and text give the same speech tokens."""
    voice_settings: VoiceSettingsFields | None = None
    """Only `speed` has a meaning."""
    pronunciation_dictionary_locators: list[LexiconLocatorFields] | None = None
    """Pronunciation dictionaries, applied in order."""


_BASE64_GROUP_BYTES = 3
"""Bytes that base64 turns into four characters; whole groups need no padding."""
_DECIMALS = 3


@dataclass(frozen=True)
class ElevenLabsSpeech:
    """What one request asks for: the speech, and how it is encoded."""

    speech: SpeechRequest
    output: OutputFormat
    speed: float
    result: SpeechResult = field(default_factory=SpeechResult)
    """Result of the speech, filled in while it is spoken."""


def whole_speech(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[bytes]:
    """Yield the bytes of one text's speech; see `bare_audio`."""
    return bare_audio(host, wanted.speech, wanted.output, wanted.speed, wanted.result)


async def timestamped_lines(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[bytes]:
    """Yield lines of JSON, each with some audio and the characters that end in it; times count from the first sample.

    A line holds a tenth of a second: aiohttp's clients read no line that is longer than 128 KiB.

    Raises:
        GatewayError: see `bare_audio`.
    """
    held: list[CharacterTime] = []
    async with aclosing(_timestamped(host, wanted)) as pieces:
        async for encoded, characters in pieces:
            held.extend(characters)
            if encoded:
                yield _line(encoded, held, wanted.speed)
                held = []
    if held:
        yield _line(b"", held, wanted.speed)


def _line(encoded: bytes, characters: Sequence[CharacterTime], speed: float) -> bytes:
    return _json({"audio_base64": base64.b64encode(encoded).decode(), **_alignments(characters, speed)}) + b"\n"


async def timestamped_object(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[bytes]:
    """Yield one JSON object with all of the audio, while it is made, and behind it the times of all characters.

    Raises:
        GatewayError: see `bare_audio`.
    """
    characters: list[CharacterTime] = []
    begin, rest = b'{"audio_base64":"', b""
    async with aclosing(_timestamped(host, wanted)) as pieces:
        async for encoded, new in pieces:
            characters.extend(new)
            rest += encoded
            whole = len(rest) // _BASE64_GROUP_BYTES * _BASE64_GROUP_BYTES
            if whole:
                yield begin + base64.b64encode(rest[:whole])
                begin, rest = b"", rest[whole:]
    yield begin + base64.b64encode(rest) + b'",' + _json(_alignments(characters, wanted.speed))[1:]


async def _timestamped(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[tuple[bytes, Sequence[CharacterTime]]]:
    """Yield encoded audio, maybe none, and the characters that end in it."""
    speech_asked, result, began_samples = replace(wanted.speech, wants_times=True), wanted.result, 0
    async with AsyncEncoder(AudioEncoder(wanted.output, wanted.speed), host.executor) as encoder:
        async with aclosing(timed(host.pipeline.synthesize(speech_asked, result), result)) as speech:
            async for audio in speech:
                for frame in frames_of(audio, began_samples):
                    yield await encoder.encode(frame.samples), frame.characters
                began_samples += len(audio.samples)
        yield await encoder.finish(), ()


def _alignments(characters: Sequence[CharacterTime], speed: float) -> dict[str, Any]:
    """Return the times of the text as it was sent, which stand for those of the normalised text too."""
    alignment = None
    if characters:
        alignment = {
            "characters": [each.character for each in characters],
            "character_start_times_seconds": [round(each.start_s / speed, _DECIMALS) for each in characters],
            "character_end_times_seconds": [round(each.end_s / speed, _DECIMALS) for each in characters],
        }
    return {"alignment": alignment, "normalized_alignment": alignment}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


Make = Callable[[Host, ElevenLabsSpeech], AsyncGenerator[bytes]]


def _speaking(make: Make, media_type: str | None = None) -> Callable[[Request], Awaitable[Response | StreamedAnswer]]:
    """Return the handler whose answers have bodies that `make` makes; None: their media type is that of the audio."""

    async def speak(request: Request) -> Response | StreamedAnswer:
        host: Host = request.app.state.host
        parse = partial(read_speech, query=request.query_params, voice=request.path_params["voice"])
        try:
            wanted = await read_body(request, host.limits.max_body_bytes, "text", parse)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            detail = [{"loc": ["body", *each["loc"]], "msg": each["msg"], "type": each["type"]} for each in problems]
            return JSONResponse({"detail": detail}, _UNPROCESSABLE)
        speech, name = wanted.speech, wanted.speech.request_id
        request.scope["request_id"] = name
        kind = media_type or wanted.output.audio_format.media_type
        headers = {"content-type": kind, "request-id": name, "cache-control": "no-store"}
        check_text(speech.text, host.pipeline.settings.max_text_characters)
        headers |= ignored_headers(host.pipeline.front_end.ignored(speech.text_options, speech.text))
        return StreamedAnswer(
            make(host, wanted), headers, name, host.limits.reader_timeout_s, lambda: warning_headers(wanted.result)
        )

    return speak


def read_speech(raw: bytes, query: Mapping[str, str], voice: str) -> ElevenLabsSpeech:
    """Check a body and the parameters of its URL.

    Raises:
        ValidationError: a field has the wrong type.
        GatewayError: a field that can't be served; which voices there are is not known here.
    """
    body = ElevenLabsSpeechBody.model_validate_json(checked_json(decode_text(raw)))
    fields = body.model_dump(exclude={"text", "voice_settings", "pronunciation_dictionary_locators"})
    options = read_options(SpeechQuery, {**fields, **query})
    speech = SpeechRequest(
        body.text,
        voice,
        options.seed,
        text_options=replace(options.text_options, lexicons=locators_of(body.pronunciation_dictionary_locators)),
    )
    return ElevenLabsSpeech(speech, options.output, speed_of(body.voice_settings))


def _a_speech(voice: VoiceName, query: Annotated[SpeechQuery, Query()], body: ElevenLabsSpeechBody) -> None: ...


_ALIGNMENT = {
    "characters": ["H", "i"],
    "character_start_times_seconds": [0.0, 0.1],
    "character_end_times_seconds": [0.1, 0.2],
}
_TIMED = {"audio_base64": "UklGRg==", "alignment": _ALIGNMENT, "normalized_alignment": _ALIGNMENT}

ROUTES: list[BaseRoute] = [
    Endpoint(
        *("POST", f"{PATH}{below}", handler, Door.ELEVENLABS, summary),
        takes=_a_speech,
        media_types=media_types,
        example=_TIMED,
        headers={"request-id": "The request's name in logs."},
        speaks=True,
    )
    for below, handler, summary, media_types in (
        ("", _speaking(whole_speech), "Speak a text; the audio is sent while it is made.", AUDIO_TYPES),
        (
            *("/with-timestamps", _speaking(timestamped_object, JSON)),
            *("Speak a text; audio in base64 and the time of each character.", (JSON,)),
        ),
        ("/stream", _speaking(whole_speech), "The same as without `/stream`.", AUDIO_TYPES),
        (
            *("/stream/with-timestamps", _speaking(timestamped_lines, JSON)),
            *("Lines of JSON while the audio is made.", (JSON,)),
        ),
    )
]
