"""Reads the config messages of `tts_api.tts.v1`: what their fields may be, and what they mean to the pipeline. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tts_api.tts.v1 import speech_pb2

from gateway.audio import AudioFormat, OutputFormat
from gateway.core import InlineVoice
from gateway.errors import InvalidRequestError, UnsupportedOptionError
from gateway.lexicons import own_rules
from gateway.speech.request import REQUEST_ID, SpeechRequest, draw_seed
from gateway.text import Normalization, TextOptions
from gateway.text.styles import style_of
from gateway.voices.draft import prompt_voice
from gateway.voices.profile import DEFAULT_VOICE
from token2wav_service.contract import DEFAULT_PRIORITY, SAMPLE_RATE_HZ

_FORMATS = {
    speech_pb2.AUDIO_ENCODING_PCM_S16LE: AudioFormat.PCM,
    speech_pb2.AUDIO_ENCODING_WAV: AudioFormat.WAV,
    speech_pb2.AUDIO_ENCODING_MP3: AudioFormat.MP3,
    speech_pb2.AUDIO_ENCODING_OGG_OPUS: AudioFormat.OPUS,
    speech_pb2.AUDIO_ENCODING_AAC: AudioFormat.AAC,
    speech_pb2.AUDIO_ENCODING_FLAC: AudioFormat.FLAC,
    speech_pb2.AUDIO_ENCODING_MULAW: AudioFormat.MULAW,
    speech_pb2.AUDIO_ENCODING_ALAW: AudioFormat.ALAW,
}
_LOSSY = (AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC)
_NORMALIZATIONS: dict[int, Normalization] = {
    speech_pb2.TEXT_NORMALIZATION_UNSPECIFIED: Normalization.ON,
    speech_pb2.TEXT_NORMALIZATION_ON: Normalization.ON,
    speech_pb2.TEXT_NORMALIZATION_OFF: Normalization.OFF,
}
_TEXT_MODES: dict[int, bool] = dict.fromkeys(speech_pb2.TextMode.values(), False)
_TEXT_MODES[speech_pb2.TEXT_MODE_INTERLEAVED] = True
"""Whether the LLM takes the text while it speaks."""
_NORMAL_SPEED = 1.0


@dataclass(frozen=True)
class GrpcSpeech:
    """What a config asks for: the speech, and how it is encoded."""

    speech: SpeechRequest
    """The speech to make; its seed is set."""
    output: OutputFormat
    speed: float
    run_ahead_s: float | None
    """Seconds of audio that may be sent ahead; None: the server chooses."""

    @property
    def format_message(self) -> speech_pb2.AudioFormat:
        """The output format as callers are told it."""
        encoding = next(value for value, audio_format in _FORMATS.items() if audio_format is self.output.audio_format)
        kbps = self.output.bit_rate_kbps
        if kbps is None and self.output.audio_format in _LOSSY:
            kbps = self.output.codec_bit_rate_bps // 1000
        return speech_pb2.AudioFormat(
            encoding=encoding, sample_rate_hz=self.output.sample_rate_hz, bit_rate_kbps=kbps or 0
        )


def read_config(config: speech_pb2.SpeechConfig, text: str = "") -> GrpcSpeech:
    """Check a config.

    Args:
        config: as it came.
        text: all of the text, if it is known by now.

    Raises:
        InvalidRequestError: a field that can't be served; which voices there are is not known here.
    """
    speech = SpeechRequest(
        text,
        _read_voice(config.voice),
        config.seed if config.HasField("seed") else draw_seed(),
        config.priority or DEFAULT_PRIORITY,
        text_options=_read_text_options(config),
        request_id=_read_request_id(config.request_id),
        is_interleaved=_known(_TEXT_MODES, config.text_mode, "text_mode"),
        wants_times=True,
    )
    speed = config.speed if config.HasField("speed") else _NORMAL_SPEED
    return GrpcSpeech(speech, _read_format(config.audio_format), speed, _read_run_ahead(config))


def _read_voice(voice: speech_pb2.Voice) -> str | InlineVoice:
    kind = voice.WhichOneof("voice")
    if kind == "prompt":
        return prompt_voice(voice.prompt.audio, voice.prompt.transcript)
    return voice.name if kind == "name" else DEFAULT_VOICE


def _read_format(asked: speech_pb2.AudioFormat) -> OutputFormat:
    encoding = asked.encoding or speech_pb2.AUDIO_ENCODING_PCM_S16LE
    return OutputFormat(
        _known(_FORMATS, encoding, "audio_format"), asked.sample_rate_hz or SAMPLE_RATE_HZ, asked.bit_rate_kbps or None
    )


def _read_text_options(config: speech_pb2.SpeechConfig) -> TextOptions:
    if any(each.version for each in config.lexicons):
        got = "got a version of a pronunciation dictionary, which is a file and has one version only"
        raise InvalidRequestError(f"{got}; leave the version out", param="lexicons")
    lexicons = [each.id for each in config.lexicons]
    normalization = _known(_NORMALIZATIONS, config.text_normalization, "text_normalization")
    style = style_of(style=config.style)
    rules = own_rules(config.pronunciations, lexicons)
    return TextOptions(config.language_code or None, normalization, config.ssml, rules, tuple(lexicons), style)


T = TypeVar("T")


def _known(meanings: Mapping[Any, T], value: int, param: str) -> T:
    """Return what a value of an enumeration means."""
    if value not in meanings:
        got = f"got the value {value} in {param}, expected {min(meanings)} to {max(meanings)}"
        raise UnsupportedOptionError(f"{got}; see the service's .proto file", param=param)
    return meanings[value]


def _read_request_id(request_id: str) -> str:
    if not request_id:
        return uuid.uuid4().hex
    if not REQUEST_ID.fullmatch(request_id):
        expected = "expected 1 to 128 printable ASCII characters without blanks, or none"
        raise InvalidRequestError(f"got the request id {request_id[:128]!r}, {expected}", param="request_id")
    return request_id


def _read_run_ahead(config: speech_pb2.SpeechConfig) -> float | None:
    if not config.HasField("run_ahead_s"):
        return None
    if not config.run_ahead_s > 0:
        expected = "expected more than 0, or none for the server's choice"
        raise InvalidRequestError(f"got run_ahead_s {config.run_ahead_s}, {expected}", param="run_ahead_s")
    return config.run_ahead_s
