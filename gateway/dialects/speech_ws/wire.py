"""What `/v1/audio/speech/stream` puts on the wire, as the clients of vllm-omni and of sglang-omni speak it. Pure.

Fields of their models that have no meaning here (`task_type`, `max_new_tokens`, ...) are taken and left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from gateway.audio import AudioFormat, OutputFormat, parse_openai_format
from gateway.core import InlineVoice
from gateway.dialects.answers import retry_after_s, wrong_field
from gateway.errors import (
    GatewayError,
    InvalidRequestError,
    UnsupportedOptionError,
    public_text,
)
from gateway.lexicons import own_rules
from gateway.speech.request import MAX_SEED
from gateway.speech.text_clock import CharacterTime, WordGatherer
from gateway.text import WHOLE_TEXT, Normalization, TextOptions
from gateway.text.splitter import CutBounds, SplitSettings
from gateway.text.styles import style_of
from gateway.voices.draft import voice_in_base64
from gateway.voices.profile import DEFAULT_VOICE

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_TEXT_BYTES = 128 * 1024
_MS_PER_S = 1000
_LANGUAGES = {
    "auto": None,
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}
"""Names of languages that vllm-omni's clients send; anything else is a BCP 47 tag."""


class Granularity(Enum):
    """What is announced, and counted, as a sentence."""

    NONE = "none"
    """The whole text is one sentence, spoken after `input.done`."""
    SENTENCE = "sentence"
    CLAUSE = "clause"

    @property
    def split(self) -> SplitSettings:
        """How to cut the text."""
        return _SPLITS[self]


_SENTENCE = CutBounds(min_sentence=12, min_clause=200, max_length=200)
_CLAUSE = CutBounds(min_sentence=12, min_clause=30, max_length=200)
_SPLITS = {
    Granularity.NONE: WHOLE_TEXT,
    Granularity.SENTENCE: SplitSettings(_SENTENCE, _SENTENCE),
    Granularity.CLAUSE: SplitSettings(_CLAUSE, _CLAUSE),
}


class ConfigFields(BaseModel):
    """The fields of `session.config`, flat or in `session`."""

    voice: str | None = Field(default=None, validation_alias=AliasChoices("voice", "speaker"))
    """Name, id or alias of a voice; by default the server's default voice."""
    response_format: str | None = None
    """Format as on `POST /v1/audio/speech`; default `wav`, with `stream_audio` `pcm`, the only one that can be
    streamed."""
    speed: float | None = None
    """0.25 to 4 times the normal speed; other values than 1 need the extra `audio`."""
    stream_audio: bool = False
    """`true`: audio is sent while it is made; `false`: each sentence is one binary message."""
    word_timestamps: bool = False
    """`true`: audio comes as `audio.chunk` with the times of its words; needs `stream_audio`."""
    split_granularity: Granularity | None = None
    """What counts as one sentence in events: `sentence` (default), `clause`, or `none`, the whole text."""
    text_mode: Literal["segments", "interleaved"] = "segments"
    """`interleaved`: the LLM takes the text a few words at a time while it speaks; an utterance is one sentence then.
    Needs the embedded LLM server, and a checkpoint that has learnt it."""
    language: str | None = None
    """BCP 47 tag, or a name such as `English`; `auto` (default): guessed from the text."""
    instructions: str | None = None
    """How to speak, at most 1000 characters. If the checkpoint takes no instructions, `session.configured` names the
    field in `ignored_fields`, or it is refused (`--unsupported-style`)."""
    ref_audio: str | None = None
    """A voice for this session only: an audio file as base64 or as a `data:` URL; addresses are refused."""
    ref_text: str | None = None
    """Transcript of the recording."""
    x_vector_only_mode: bool | None = None
    """`true`: take only the timbre of the recording, whatever `ref_text` says."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """0 to 2**63-1: the same seed and text give the same speech tokens."""
    ssml: bool = False
    """`true`: the text is SSML, or the content of a `<speak>` element."""
    pronunciations: dict[str, str] | None = None
    """Words and what is spoken for them, such as `{"Xiaomi": "show me"}`; 500 at most."""
    lexicons: list[str] | None = None
    """Names of pronunciation dictionaries, applied in order; 8 at most."""
    style: str | None = None
    """Another name of `instructions`, which may be a word such as `happy` or `whisper`."""


@dataclass(frozen=True)
class SpeechConfig:
    """How to speak until another config comes."""

    voice: str | InlineVoice
    output: OutputFormat
    speed: float
    is_streamed: bool
    """Whether audio is sent while it is made; otherwise each sentence is one message."""
    has_word_times: bool
    granularity: Granularity
    is_interleaved: bool
    """Whether the LLM takes the text while it speaks."""
    text_options: TextOptions
    seed: int | None

    @property
    def description(self) -> dict[str, Any]:
        """What the client is told of it."""
        return {
            "response_format": self.output.audio_format.value,
            "stream_audio": self.is_streamed,
            "split_granularity": self.granularity.value,
            "sample_rate": self.output.sample_rate_hz,
        }


def parse_config(message: Mapping[str, Any]) -> SpeechConfig:
    """Read a `session.config`.

    Raises:
        InvalidRequestError: a field that can't be.
    """
    nested = message.get("session")
    try:
        fields = ConfigFields.model_validate(message if nested is None else nested)
    except ValidationError as error:
        raise wrong_field(error, "session") from error
    _check(fields)
    return SpeechConfig(
        voice=_voice(fields),
        output=_output(fields),
        speed=1.0 if fields.speed is None else fields.speed,
        is_streamed=fields.stream_audio,
        has_word_times=fields.word_timestamps,
        granularity=fields.split_granularity or Granularity.SENTENCE,
        is_interleaved=fields.text_mode == "interleaved",
        text_options=TextOptions(
            _language(fields.language),
            Normalization.ON,
            fields.ssml,
            own_rules(fields.pronunciations, fields.lexicons),
            tuple(fields.lexicons or ()),
            style_of(instructions=fields.instructions, style=fields.style),
        ),
        seed=fields.seed,
    )


def error_message(error: GatewayError) -> dict[str, Any]:
    """Make the message that tells of an error."""
    message = {"type": "error", "message": public_text(error), "code": error.code}
    param = error.param if isinstance(error, InvalidRequestError) else None
    known = {"param": param, "retry_after_s": retry_after_s(error)}
    return message | {name: value for name, value in known.items() if value is not None}


def word_times(characters: list[CharacterTime], began_s: float, speed: float) -> list[dict[str, Any]]:
    """Return a sentence's words with their times from its first sample."""
    gatherer = WordGatherer()
    words = [*gatherer.push(characters), *gatherer.finish()]

    def milliseconds(made_s: float) -> int:
        return round((made_s - began_s) / speed * _MS_PER_S)

    return [
        {"word": each.word, "start_ms": milliseconds(each.start_s), "end_ms": milliseconds(each.end_s)}
        for each in words
    ]


def _check(fields: ConfigFields) -> None:
    is_pcm = fields.response_format in (None, AudioFormat.PCM.value)
    if fields.stream_audio and not is_pcm:
        got = f"got response_format {fields.response_format!r} with stream_audio"
        raise UnsupportedOptionError(f"{got}, only pcm can be streamed here", param="response_format")
    if fields.word_timestamps and not fields.stream_audio:
        raise UnsupportedOptionError("word_timestamps need stream_audio=true; set it", param="word_timestamps")
    if fields.text_mode == "interleaved" and fields.split_granularity is not None:
        got = f"split_granularity {fields.split_granularity.value} with text_mode interleaved, which splits nothing"
        raise UnsupportedOptionError(f"{got}; leave one of them out", param="split_granularity")


def _output(fields: ConfigFields) -> OutputFormat:
    default = AudioFormat.PCM if fields.stream_audio else AudioFormat.WAV
    return parse_openai_format(fields.response_format or default.value)


def _voice(fields: ConfigFields) -> str | InlineVoice:
    if fields.ref_audio is None:
        return fields.voice or DEFAULT_VOICE
    return voice_in_base64(fields.ref_audio, "" if fields.x_vector_only_mode else fields.ref_text or "")


def _language(given: str | None) -> str | None:
    return _LANGUAGES.get(given.lower(), given) if given else None
