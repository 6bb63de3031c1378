"""What ElevenLabs' protocols put on the wire: options of the URL, messages in and out, errors. Pure.

Fields that have no meaning here (stability of the voice, logging, ...) are taken and left alone: clients send them on
their own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from gateway.audio import DEFAULT_ELEVENLABS_FORMAT, OutputFormat, parse_elevenlabs_format
from gateway.dialects.answers import error_headers, first_problem, retry_after_s
from gateway.errors import GatewayError, InvalidRequestError, public_text, wire_status
from gateway.speech.request import MAX_SEED
from gateway.text import Normalization, TextOptions

NORMAL_SPEED = 1.0
DEFAULT_INACTIVITY_S = 20.0
MAX_INACTIVITY_S = 180.0
_MAX_CONTEXT_ID = 256
_MAX_SCHEDULE = 64
_MAX_BUFFERED_CHARACTERS = 500
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_MODELS_WITH_AUDIO_TAGS = "eleven_v3"
"""First letters of the names of ElevenLabs' models that read audio tags; other models speak the tags."""
_NORMALIZATIONS = {"auto": Normalization.ON, "on": Normalization.ON, "off": Normalization.OFF}


@dataclass(frozen=True)
class RequestOptions:
    """How to speak, as an URL or a body says it."""

    output: OutputFormat
    text_options: TextOptions
    seed: int | None


@dataclass(frozen=True)
class SocketOptions:
    """What holds for a socket."""

    speech: RequestOptions
    is_auto: bool
    """Whether every text message is spoken at once; otherwise text is buffered."""
    is_absolute: bool
    """Times of characters count from the context's start; otherwise from the alignment before.

    LiveKit's client needs the one and asks for it by `sync_alignment`, Pipecat's needs the other.
    """
    inactivity_s: float
    is_interleaved: bool = False
    """Whether the LLM takes the text a few words at a time while it speaks."""


class GenerationConfig(BaseModel):
    """How much text to wait for."""

    chunk_length_schedule: list[Annotated[float, Field(gt=0, le=_MAX_BUFFERED_CHARACTERS)]] | None = Field(
        default=None, max_length=_MAX_SCHEDULE
    )
    """Characters buffered before the first speech, the second, ...; the last number holds from there on."""


class LexiconLocatorFields(BaseModel):
    """A pronunciation dictionary; a `version_id` has no meaning here, because a file is its only version."""

    pronunciation_dictionary_id: str
    """The name of one of the operator's dictionaries: its file's name without the ending."""


class VoiceSettingsFields(BaseModel):
    """What of the voice can be changed; stability, similarity and style are the recording's own here."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    speed: float | None = None
    """0.25 to 4 times the normal speed; other values than 1 need the extra `audio`."""


class ClientMessage(BaseModel):
    """Any message that a client sends."""

    text: str | None = None
    """More text, joined to what came before. Empty text without a context keeps the socket alive; on `stream-input` it
    ends the text."""
    context_id: str | None = Field(
        default=None, max_length=_MAX_CONTEXT_ID, validation_alias=AliasChoices("context_id", "contextId")
    )
    """Which context the message is for; on `multi-stream-input` a new name opens a new context."""
    flush: bool | None = None
    """Speak all text so far, without waiting for more."""
    try_trigger_generation: bool | None = None
    """Without `auto_mode`: pass on the text that is buffered, without waiting for the schedule."""
    close_context: bool | None = None
    """After a flush: no more text will come, speak the rest; the id may be used again. After other text, or a second
    time: stop now."""
    close_socket: bool | None = None
    """Close the socket; contexts may speak on for 1.5 s."""
    generation_config: GenerationConfig | None = None
    """How much text to wait for before it is spoken; first message of a context."""
    voice_settings: VoiceSettingsFields | None = None
    """Only `speed` has a meaning; first message of a context."""
    pronunciation_dictionary_locators: list[LexiconLocatorFields] | None = None
    """Pronunciation dictionaries, applied in order; first message of a context."""

    @property
    def lexicons(self) -> tuple[str, ...]:
        """Its dictionaries."""
        return locators_of(self.pronunciation_dictionary_locators)

    @property
    def has_speech(self) -> bool:
        """Whether it brings text that is more than blank."""
        return bool(self.text and self.text.strip())

    @property
    def is_flush_only(self) -> bool:
        """Whether it flushes and brings nothing to say."""
        return bool(self.flush) and not self.has_speech

    @property
    def schedule(self) -> tuple[float, ...]:
        """Its `chunk_length_schedule`; empty if it has none."""
        return tuple((self.generation_config and self.generation_config.chunk_length_schedule) or ())

    @property
    def speed(self) -> float:
        """Times as fast as normal; above 1 is faster."""
        return speed_of(self.voice_settings)


def parse_message(fields: Mapping[str, Any]) -> ClientMessage:
    """Read a message.

    Raises:
        InvalidRequestError: a field has the wrong type.
    """
    try:
        return ClientMessage.model_validate(fields)
    except ValidationError as error:
        where, problem = first_problem(error)
        got = f"{where or 'message'}: {problem}"
        raise InvalidRequestError(f"{got}; correct it and send it again", param=where) from error


def locators_of(fields: Sequence[LexiconLocatorFields] | None) -> tuple[str, ...]:
    """Return the dictionaries that a request names."""
    return tuple(each.pronunciation_dictionary_id for each in fields or ())


def speed_of(settings: VoiceSettingsFields | None) -> float:
    """Return the speed that the settings ask for."""
    return NORMAL_SPEED if settings is None or settings.speed is None else settings.speed


def parse_socket_options(query: Mapping[str, str]) -> SocketOptions:
    """Read a socket's query.

    Raises:
        InvalidRequestError: a value that can't be.
    """
    seconds = _number(query, "inactivity_timeout", DEFAULT_INACTIVITY_S)
    if not 0 < seconds <= MAX_INACTIVITY_S:
        expected = f"expected more than 0 and at most {MAX_INACTIVITY_S:.0f} seconds"
        raise InvalidRequestError(f"got inactivity_timeout {seconds}, {expected}", param="inactivity_timeout")
    is_auto, is_interleaved = _boolean(query, "auto_mode"), _is_interleaved(query)
    if is_auto and is_interleaved:
        got = "got auto_mode with text_mode interleaved, whose text is spoken before a message of it is complete"
        raise InvalidRequestError(f"{got}; leave one out", param="auto_mode")
    return SocketOptions(
        parse_request_options(query), is_auto, _boolean(query, "sync_alignment"), seconds, is_interleaved
    )


def _is_interleaved(query: Mapping[str, str]) -> bool:
    mode = query.get("text_mode") or "segments"
    if mode not in ("segments", "interleaved"):
        raise InvalidRequestError(f"got text_mode {mode!r}, expected segments or interleaved", param="text_mode")
    return mode == "interleaved"


def parse_request_options(fields: Mapping[str, Any]) -> RequestOptions:
    """Read what URLs and bodies have in common; values may be absent or None.

    Raises:
        InvalidRequestError: a value that can't be.
    """
    normalization = fields.get("apply_text_normalization") or "auto"
    if normalization not in _NORMALIZATIONS:
        got = f"got apply_text_normalization {normalization!r}, expected auto, on or off"
        raise InvalidRequestError(got, param="apply_text_normalization")
    language = fields.get("language_code") or None
    return RequestOptions(
        parse_elevenlabs_format(fields.get("output_format") or DEFAULT_ELEVENLABS_FORMAT),
        TextOptions(
            language,
            _NORMALIZATIONS[normalization],
            is_ssml=_boolean(fields, "enable_ssml_parsing"),
            has_audio_tags=str(fields.get("model_id") or "").startswith(_MODELS_WITH_AUDIO_TAGS),
        ),
        _seed(fields.get("seed")),
    )


def audio_message(audio: bytes, alignment: Mapping[str, Any] | None, context_id: str | None) -> dict[str, Any]:
    """Make a message of audio; the alignment is of the text as sent, which stands for the normalised one too."""
    message: dict[str, Any] = {
        "audio": base64.b64encode(audio).decode("ascii"),
        "alignment": alignment,
        "normalizedAlignment": alignment,
    }
    return _addressed(message, context_id)


def final_message(progress: Mapping[str, Any], context_id: str | None) -> dict[str, Any]:
    """Make the last message of a context, with the account of what was spoken."""
    return _addressed({"audio": None, "isFinal": True, "progress": progress}, context_id)


def error_message(error: GatewayError, context_id: str | None) -> dict[str, Any]:
    """Make the message that fails one context, or no context if it has none."""
    message = {"error": public_text(error), "errorCode": error.code}
    seconds = retry_after_s(error)
    return _addressed(message if seconds is None else {**message, "retryAfterS": seconds}, context_id)


def closing_message(name: str, message: str, close_code: int) -> dict[str, Any]:
    """Make the message that tells why the socket is closed."""
    return {"message": message, "error": name, "code": close_code}


class ErrorDetail(BaseModel):
    """An error of ours."""

    status: str
    message: str


class WrongField(BaseModel):
    """A field of the body of the wrong form."""

    loc: list[str | int]
    msg: str
    type: str


class ElevenLabsErrorBody(BaseModel):
    """The body of an answer that is an error."""

    detail: ErrorDetail | list[WrongField]


def error_response(error: GatewayError) -> JSONResponse:
    """Make the HTTP answer to an error."""
    status = wire_status(error)
    return JSONResponse(detail(public_text(error), status.code), status.http, error_headers(error))


def detail(message: str, code: str) -> dict[str, dict[str, str]]:
    """Return `ElevenLabsErrorBody` for an error of ours."""
    return {"detail": {"status": code, "message": message}}


def _addressed(message: dict[str, Any], context_id: str | None) -> dict[str, Any]:
    return message if context_id is None else {**message, "contextId": context_id}


def _boolean(query: Mapping[str, Any], name: str) -> bool:
    given = str(query.get(name) or "false").lower()
    if given not in _BOOLEANS:
        raise InvalidRequestError(f"got {name} {given!r}, expected true or false", param=name)
    return _BOOLEANS[given]


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(query.get(name, default))
    except ValueError as error:
        raise InvalidRequestError(f"got {name} {query[name]!r}, expected a number", param=name) from error


def _seed(given: Any) -> int | None:
    if given is None or given == "":
        return None
    try:
        seed = int(given)
    except ValueError as error:
        raise InvalidRequestError(f"got seed {given!r}, expected a whole number", param="seed") from error
    if not 0 <= seed <= MAX_SEED:
        raise InvalidRequestError(f"got seed {seed}, expected 0 to 2**63-1", param="seed")
    return seed
