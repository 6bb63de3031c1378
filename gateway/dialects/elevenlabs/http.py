"""ElevenLabs' HTTP routes that speak: whole texts in, audio out as it is made.

Parses and refuses; everything else is the pipeline's. Audio is not paced here: a client that turns away hangs up.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.dialects.common.answers import (
    Answer,
    Handler,
    StreamedAnswer,
    answering,
    ignored_headers,
    read_body,
    warning_headers,
)
from gateway.dialects.common.parts import checked_json
from gateway.dialects.elevenlabs.speech import ElevenLabsSpeech, timestamped_lines, timestamped_object, whole_speech
from gateway.dialects.elevenlabs.wire import (
    LexiconLocatorFields,
    VoiceSettingsFields,
    error_response,
    locators_of,
    parse_request_options,
    speed_of,
)
from gateway.host import Host
from gateway.speech.request import SpeechRequest, check_text, decode_text

PATH = "/v1/text-to-speech/{voice}"
_JSON = "application/json"
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


Make = Callable[[Host, ElevenLabsSpeech], AsyncGenerator[bytes]]


def routes(host: Callable[[], Host], max_body_bytes: int) -> list[BaseRoute]:
    """Return the routes, ready to be added to an application.

    Args:
        host: where to find what to speak with, once the application has started.
        max_body_bytes: largest request body accepted.
    """

    def speaking(make: Make, media_type: str | None = None) -> Handler:
        async def speak(request: Request) -> Answer:
            raw = await read_body(request, max_body_bytes, "text")
            try:
                wanted = read_speech(raw, request.query_params, request.path_params["voice"])
            except ValidationError as error:
                return _unprocessable(error)
            return _answer(host(), wanted, make, media_type)

        return answering(speak, error_response)

    return [
        Route(PATH, speaking(whole_speech), methods=["POST"]),
        Route(f"{PATH}/with-timestamps", speaking(timestamped_object, _JSON), methods=["POST"]),
        Route(f"{PATH}/stream", speaking(whole_speech), methods=["POST"]),
        Route(f"{PATH}/stream/with-timestamps", speaking(timestamped_lines, _JSON), methods=["POST"]),
    ]


def _answer(host: Host, wanted: ElevenLabsSpeech, make: Make, media_type: str | None) -> StreamedAnswer:
    speech, name = wanted.speech, wanted.speech.request_id
    media_type = media_type or wanted.output.audio_format.media_type
    headers = {"content-type": media_type, "request-id": name, "cache-control": "no-store"}
    check_text(speech.text, host.pipeline.settings.max_text_characters)
    headers |= ignored_headers(host.pipeline.front_end.ignored(speech.text_options, speech.text))
    return StreamedAnswer(
        make(host, wanted),
        headers,
        error_response,
        name,
        host.limits.reader_timeout_s,
        lambda: warning_headers(wanted.result),
    )


def read_speech(raw: bytes, query: Mapping[str, str], voice: str) -> ElevenLabsSpeech:
    """Check a body and the parameters of its URL.

    Raises:
        ValidationError: a field has the wrong type.
        GatewayError: a field that can't be served; which voices there are is not known here.
    """
    body = ElevenLabsSpeechBody.model_validate_json(checked_json(decode_text(raw)))
    fields = body.model_dump(exclude={"text", "voice_settings", "pronunciation_dictionary_locators"})
    options = parse_request_options({**fields, **query})
    speech = SpeechRequest(
        body.text,
        voice,
        options.seed,
        text_options=replace(options.text_options, lexicons=locators_of(body.pronunciation_dictionary_locators)),
    )
    return ElevenLabsSpeech(speech, options.output, speed_of(body.voice_settings))


def _unprocessable(error: ValidationError) -> Response:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    detail = [{"loc": ["body", *each["loc"]], "msg": each["msg"], "type": each["type"]} for each in problems]
    return JSONResponse({"detail": detail}, _UNPROCESSABLE)
