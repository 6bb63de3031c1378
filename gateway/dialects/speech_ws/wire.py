"""What `/v1/audio/speech/stream` puts on the wire, as the clients of vllm-omni and of sglang-omni speak it. Pure.

Fields of their models that have no meaning here (`task_type`, `max_new_tokens`, ...) are taken and left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Literal

from pydantic import AliasChoices, Field

from gateway.audio import AudioFormat, OutputFormat, parse_openai_format
from gateway.core import InlineVoice
from gateway.dialects.answers import checked_fields, retry_after_s
from gateway.dialects.openai.request import SpeechFields
from gateway.errors import (
    GatewayError,
    InvalidRequestError,
    UnsupportedOptionError,
    public_text,
)
from gateway.speech.request import MAX_SEED
from gateway.text import WHOLE_TEXT
from gateway.text.splitter import CutBounds, SplitSettings

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_TEXT_BYTES = 128 * 1024


class Granularity(Enum):
    """What is announced, and counted, as a sentence."""

    NONE = "none"
    """The whole text is one sentence, spoken after `input.done`."""
    SENTENCE = "sentence"
    CLAUSE = "clause"


_SENTENCE = CutBounds(min_sentence=12, min_clause=200, max_length=200)
_CLAUSE = CutBounds(min_sentence=12, min_clause=30, max_length=200)
SPLITS = {
    Granularity.NONE: WHOLE_TEXT,
    Granularity.SENTENCE: SplitSettings(_SENTENCE, _SENTENCE),
    Granularity.CLAUSE: SplitSettings(_CLAUSE, _CLAUSE),
}
"""How to cut a text."""


class ConfigFields(SpeechFields):
    """The fields of `session.config`, flat or in `session`."""

    voice: str | None = Field(default=None, validation_alias=AliasChoices("voice", "speaker"))
    """Name, id or alias of a voice; by default the server's default voice."""
    response_format: str | None = None
    """Format as on `POST /v1/audio/speech`; default `wav`, with `stream_audio` `pcm`, the only one that can be
    streamed."""
    stream_audio: bool = False
    """`true`: audio is sent while it is made; `false`: each sentence is one binary message."""
    word_timestamps: bool = False
    """`true`: audio comes as `audio.chunk` with the times of its words; needs `stream_audio`."""
    split_granularity: Granularity | None = None
    """What counts as one sentence in events: `sentence` (default), `clause`, or `none`, the whole text."""
    text_mode: Literal["segments", "interleaved"] = "segments"
    """`interleaved`: the LLM takes the text a few words at a time while it speaks; an utterance is one sentence then.
    Needs the embedded LLM server, and a checkpoint that has learnt it."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """0 to 2**63-1: the same seed and text give the same speech tokens. By default the server draws one."""

    @property
    def output(self) -> OutputFormat:
        """The format; raises UnsupportedOptionError if it can't be had."""
        default = AudioFormat.PCM if self.stream_audio else AudioFormat.WAV
        return parse_openai_format(self.response_format or default.value)

    @cached_property
    def speaker(self) -> str | InlineVoice:
        """The voice; raises InvalidRequestError if a recording can't be one."""
        return self.voice_or(self.voice)

    @property
    def times_as_fast(self) -> float:
        """The speed."""
        return 1.0 if self.speed is None else self.speed

    @property
    def granularity(self) -> Granularity:
        """What is a sentence."""
        return self.split_granularity or Granularity.SENTENCE

    @property
    def description(self) -> dict[str, Any]:
        """What the client is told of it."""
        return {
            "response_format": self.output.audio_format.value,
            "stream_audio": self.stream_audio,
            "split_granularity": self.granularity.value,
            "sample_rate": self.output.sample_rate_hz,
        }


def parse_config(message: Mapping[str, Any]) -> ConfigFields:
    """Read a `session.config`.

    Raises:
        InvalidRequestError: a field that can't be.
    """
    nested = message.get("session")
    with checked_fields("session"):
        fields = ConfigFields.model_validate(message if nested is None else nested)
    _check(fields)
    return fields


def error_message(error: GatewayError) -> dict[str, Any]:
    """Make the message that tells of an error."""
    message = {"type": "error", "message": public_text(error), "code": error.code}
    param = error.param if isinstance(error, InvalidRequestError) else None
    known = {"param": param, "retry_after_s": retry_after_s(error)}
    return message | {name: value for name, value in known.items() if value is not None}


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
