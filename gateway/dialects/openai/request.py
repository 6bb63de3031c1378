"""Reads the body of POST /v1/audio/speech: what its fields may be, and what they mean to the pipeline. Pure.

Fields that this server has no use for are accepted and reported, as clients send their own beside OpenAI's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ConfigDict

from gateway.audio import AudioFormat, OutputFormat, parse_openai_format
from gateway.core import InlineVoice
from gateway.dialects.answers import checked_fields, checked_json
from gateway.errors import UnsupportedOptionError
from gateway.lexicons import own_rules
from gateway.speech.request import SpeechRequest, decode_text, draw_seed
from gateway.text import Normalization, TextOptions
from gateway.text.styles import style_of
from gateway.voices.draft import voice_in_base64
from gateway.voices.profile import DEFAULT_VOICE
from token2wav_service.contract import DEFAULT_PRIORITY

logger = logging.getLogger(__name__)

_NORMAL_SPEED = 1.0
_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_NAMED_FIELDS = 20


class StreamFormat(str, Enum):
    """How the audio is wrapped."""

    AUDIO = "audio"
    """The audio's bytes alone."""
    SSE = "sse"
    """Server-sent events with the audio in base64."""


class VoiceObject(BaseModel):
    """The object form of `voice`."""

    model_config = ConfigDict(strict=True, use_attribute_docstrings=True)
    id: str
    """The voice's id or name."""


class OpenAIFields(BaseModel):
    """Fields of OpenAI's body, and some of ours: `sample_rate`, `priority`, `normalize` and `word_timestamps`."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    model: str | None = None
    """Any name: there is one model, and clients insist on names of their own."""
    input: str
    """The text; at most 100,000 characters (`--max-text-characters`)."""
    voice: str | VoiceObject | None = None
    """A name, an alias such as `alloy`, or an object with the `id` of a created voice; by default the server's default
    voice."""
    response_format: str | None = None
    """`mp3` (default), `opus`, `aac`, `flac`, `wav`, `pcm` (16 bit, one channel, no header), `mulaw` or `alaw` (as on
    telephones: one byte a sample, no header). Without the extra `audio` only `wav`, which is then the default, `pcm`,
    `mulaw` and `alaw`."""
    sample_rate: int | None = None
    """Samples a second, 8000 to 48000; of `mp3` and `aac` 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100 or
    48000. By default 24000, of `mulaw` and `alaw` 8000. `x-sample-rate` tells it."""
    stream_format: str | None = None
    """`audio` (default): the audio's bytes alone; `sse`: server-sent events."""
    priority: int | None = None
    """Scheduling class from 1 (first) to 10 (last, the default)."""
    normalize: bool | None = None
    """`true` (default): written forms such as `3.50` become words; `false`: the text is spoken as it is written."""
    word_timestamps: bool | None = None
    """`true`: events `speech.audio.words` tell when each word is spoken; needs `stream_format` `sse`."""


class SpeechFields(BaseModel):
    """How to speak, as this dialect and that of vllm-omni's WebSocket say it; null and left out are the same."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    speed: float | None = None
    """0.25 to 4 times the normal speed at the same pitch; other values than 1 need the extra `audio`."""
    instructions: str | None = None
    """How to speak, at most 1000 characters. If the checkpoint takes no instructions, the answer names the field among
    those that it ignored, or the request is refused (`--unsupported-style`)."""
    style: str | None = None
    """Another name of `instructions`, which may be a word such as `happy` or `whisper`."""
    seed: int | None = None
    """0 to 2**63-1: the same seed and text give the same speech tokens. By default the server draws one."""
    language: str | None = None
    """BCP 47 tag such as `en` or `zh-CN`, or a name such as `English`; `auto` (default): guessed from the text, part by
    part."""
    ssml: bool | None = None
    """`true`: the text is SSML, or the content of a `<speak>` element."""
    pronunciations: dict[str, str] | None = None
    """Words and what is spoken for them, such as `{"Xiaomi": "show me"}`; 500 at most."""
    lexicons: list[str] | None = None
    """Names of pronunciation dictionaries, applied in order; 8 at most."""
    ref_audio: str | None = None
    """A voice for this request or session only, instead of `voice`: an audio file as base64 or as a `data:` URL;
    addresses are refused."""
    ref_text: str | None = None
    """Transcript of the recording."""
    x_vector_only_mode: bool | None = None
    """`true`: take only the timbre of the recording, whatever `ref_text` says."""

    def voice_or(self, name: str | None) -> str | InlineVoice:
        """Return the voice that came along, or the name of one."""
        if self.ref_audio is not None:
            return voice_in_base64(self.ref_audio, "" if self.x_vector_only_mode else self.ref_text or "")
        return name or DEFAULT_VOICE

    def text_options(self, normalization: Normalization = Normalization.ON) -> TextOptions:
        """Return how to read the text; raises InvalidRequestError if a field can't be."""
        asks_style = self.instructions or self.style
        style = style_of(instructions=self.instructions, style=self.style) if asks_style else None
        rules = own_rules(self.pronunciations, self.lexicons) if self.pronunciations else ()
        return TextOptions(self.language, normalization, self.ssml is True, rules, tuple(self.lexicons or ()), style)


class SpeechBody(SpeechFields, OpenAIFields):
    """The request body, null and left out being the same."""

    model_config = ConfigDict(extra="allow", strict=True)


@dataclass(frozen=True)
class OpenAISpeech:
    """What one request asks for: the speech, and how it is encoded."""

    speech: SpeechRequest
    """The speech to make; its seed is set."""
    output: OutputFormat
    speed: float
    stream_format: StreamFormat
    ignored_fields: tuple[str, ...]
    """Names of the request's fields that no checkpoint uses; safe to put into a header."""
    has_word_times: bool = False
    """Whether events tell when words are spoken."""


def default_format(available: Collection[AudioFormat]) -> AudioFormat:
    """Return what requests get that name no format: MP3 as from OpenAI if there is an encoder, else WAV.

    Args:
        available: see `load_codecs`.
    """
    if AudioFormat.MP3 in available:
        return AudioFormat.MP3
    logger.warning("OpenAI's clients that name no response_format get wav, not mp3 as they expect")
    return AudioFormat.WAV


def read_request(raw: bytes, default: AudioFormat, request_id: str) -> OpenAISpeech:
    """Check a body.

    Args:
        raw: as it came.
        default: see `default_format`.
        request_id: names the speech in logs.

    Raises:
        InvalidRequestError: a field that can't be served; which voices there are is not known here.
    """
    with checked_fields("body"):
        body = SpeechBody.model_validate_json(checked_json(decode_text(raw)))
    speech = SpeechRequest(
        body.input,
        body.voice_or(body.voice.id if isinstance(body.voice, VoiceObject) else body.voice),
        draw_seed() if body.seed is None else body.seed,
        DEFAULT_PRIORITY if body.priority is None else body.priority,
        text_options=body.text_options(Normalization.OFF if body.normalize is False else Normalization.ON),
        request_id=request_id,
        wants_times=body.word_timestamps is True,
    )
    named = body.stream_format
    stream_format = StreamFormat.AUDIO if named is None else _read_stream_format(named)
    if body.word_timestamps and stream_format is not StreamFormat.SSE:
        raise UnsupportedOptionError("word_timestamps need stream_format=sse; set it", param="word_timestamps")
    return OpenAISpeech(
        speech,
        parse_openai_format(body.response_format or default.value, body.sample_rate),
        _NORMAL_SPEED if body.speed is None else body.speed,
        stream_format,
        tuple(filter(_FIELD_NAME.fullmatch, body.model_extra or ()))[:_MAX_NAMED_FIELDS],
        body.word_timestamps is True,
    )


def _read_stream_format(name: str) -> StreamFormat:
    try:
        return StreamFormat(name or StreamFormat.AUDIO)
    except ValueError as error:
        supported = ", ".join(stream_format.value for stream_format in StreamFormat)
        got = f"got stream_format {name!r}, supported are {supported}"
        raise UnsupportedOptionError(got, param="stream_format") from error
