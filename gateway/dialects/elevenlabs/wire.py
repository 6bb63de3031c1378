"""What ElevenLabs' protocols put on the wire: options of the URL, messages in and out, errors. Pure.

Fields that have no meaning here (stability of the voice, logging, ...) are taken and left alone: clients send them on
their own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from gateway.audio import DEFAULT_ELEVENLABS_FORMAT, OutputFormat, parse_elevenlabs_format
from gateway.dialects.answers import checked_fields, error_headers, retry_after_s
from gateway.errors import GatewayError, InvalidRequestError, public_text, wire_status
from gateway.speech.request import MAX_SEED
from gateway.text import Normalization, TextOptions

NORMAL_SPEED = 1.0
_MAX_CONTEXT_ID = 256
_MAX_SCHEDULE = 64
_MAX_BUFFERED_CHARACTERS = 500
_MODELS_WITH_AUDIO_TAGS = "eleven_v3"
"""First letters of the names of ElevenLabs' models that read audio tags; other models speak the tags."""


class SpeechQuery(BaseModel):
    """Options in the URL of a request or a socket."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    output_format: str = DEFAULT_ELEVENLABS_FORMAT
    """Such as `mp3_44100_128` (default), `pcm_24000`, `opus_48000_64`, `ulaw_8000`."""
    model_id: str = ""
    """Any name; with `eleven_v3` the gateway obeys audio tags such as `[whispers]` in the text."""
    language_code: str | None = None
    """BCP 47 tag; by default guessed from the text."""
    apply_text_normalization: Literal["auto", "on", "off"] = "auto"
    """`auto` (default), `on` or `off`."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """0 to 2**63-1: the same seed and text give the same speech tokens."""
    enable_ssml_parsing: bool = False
    """`true`: the text is SSML, or what may stand in its `<speak>`."""

    @property
    def output(self) -> OutputFormat:
        """The format; raises UnsupportedOptionError if it can't be had."""
        return parse_elevenlabs_format(self.output_format)

    @property
    def text_options(self) -> TextOptions:
        """How to read the text; raises InvalidRequestError if there is no such language."""
        normalization = Normalization.OFF if self.apply_text_normalization == "off" else Normalization.ON
        reads_tags = self.model_id.startswith(_MODELS_WITH_AUDIO_TAGS)
        return TextOptions(
            self.language_code, normalization, is_ssml=self.enable_ssml_parsing, has_audio_tags=reads_tags
        )


class SocketQuery(SpeechQuery):
    """Options in the URL of a socket."""

    auto_mode: bool = False
    """`true`: a text message is spoken at once; `false` (default): it waits for the schedule or a flush."""
    sync_alignment: bool = False
    """`true`: times count from the context's start, as LiveKit's client needs it; `false` (default): from the alignment
    before, as Pipecat's does."""
    inactivity_timeout: float = Field(default=20.0, gt=0, le=180)
    """Seconds without a message after which the socket is closed; at most 180."""
    text_mode: Literal["segments", "interleaved"] = "segments"
    """`interleaved`: the LLM takes the text a few words at a time while it speaks; not with `auto_mode`."""


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
    with checked_fields():
        return ClientMessage.model_validate(fields)


def locators_of(fields: Sequence[LexiconLocatorFields] | None) -> tuple[str, ...]:
    """Return the dictionaries that a request names."""
    return tuple(each.pronunciation_dictionary_id for each in fields or ())


def speed_of(settings: VoiceSettingsFields | None) -> float:
    """Return the speed that the settings ask for."""
    return NORMAL_SPEED if settings is None or settings.speed is None else settings.speed


Options = TypeVar("Options", bound=SpeechQuery)


def read_options(kind: type[Options], fields: Mapping[str, Any]) -> Options:
    """Read the options of an URL, or of a body; None and empty text are as good as nothing.

    Raises:
        InvalidRequestError: a value that can't be.
    """
    with checked_fields():
        return kind.model_validate({name: value for name, value in fields.items() if value not in (None, "")})


def read_socket_options(query: Mapping[str, str]) -> SocketQuery:
    """Read a socket's query.

    Raises:
        InvalidRequestError: a value that can't be.
    """
    options = read_options(SocketQuery, query)
    if options.auto_mode and options.text_mode == "interleaved":
        got = "got auto_mode with text_mode interleaved, whose text is spoken before a message of it is complete"
        raise InvalidRequestError(f"{got}; leave one out", param="auto_mode")
    return options


def audio_message(audio: bytes, alignment: Mapping[str, Any] | None, context_id: str | None) -> dict[str, Any]:
    """Make a message of audio; the alignment is of the text as sent, which stands for the normalised one too."""
    encoded = base64.b64encode(audio).decode("ascii")
    return _addressed({"audio": encoded, "alignment": alignment, "normalizedAlignment": alignment}, context_id)


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
