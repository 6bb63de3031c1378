"""What each protocol calls the formats. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateway.audio.formats import AudioFormat, OutputFormat
from gateway.errors import UnsupportedOptionError

OPENAI_FORMATS: Mapping[str, AudioFormat] = {
    audio_format.value: audio_format
    for audio_format in (
        AudioFormat.MP3,
        AudioFormat.OPUS,
        AudioFormat.AAC,
        AudioFormat.FLAC,
        AudioFormat.WAV,
        AudioFormat.PCM,
    )
}
"""`response_format` of POST /v1/audio/speech."""

RIVA_ENCODINGS: Mapping[str, AudioFormat] = {
    "LINEAR_PCM": AudioFormat.PCM,
    "FLAC": AudioFormat.FLAC,
    "MULAW": AudioFormat.MULAW,
    "OGGOPUS": AudioFormat.OPUS,
    "ALAW": AudioFormat.ALAW,
}
"""Names of the values of nvidia.riva.AudioEncoding."""

DEFAULT_ELEVENLABS_FORMAT = "mp3_44100_128"
"""What ElevenLabs sends where no `output_format` is given."""

_ELEVENLABS_WITHOUT_BIT_RATE = {
    "pcm": AudioFormat.PCM,
    "wav": AudioFormat.WAV,
    "ulaw": AudioFormat.MULAW,
    "alaw": AudioFormat.ALAW,
}
_ELEVENLABS_WITH_BIT_RATE = {"mp3": AudioFormat.MP3, "opus": AudioFormat.OPUS}
_ELEVENLABS_NAME = re.compile(r"(?P<codec>[a-z0-9]+)_(?P<rate>[0-9]{4,5})(?:_(?P<kbps>[0-9]{1,3}))?", re.ASCII)


def parse_openai_format(response_format: str) -> OutputFormat:
    """Read `response_format`; always 24 kHz, which OpenAI's clients take for granted.

    Raises:
        UnsupportedOptionError: there is no such format.
    """
    audio_format = OPENAI_FORMATS.get(response_format)
    if audio_format is None:
        raise _unknown("response_format", response_format, OPENAI_FORMATS)
    return OutputFormat(audio_format)


def parse_riva_format(encoding: str, sample_rate_hz: int) -> OutputFormat:
    """Read the name of an AudioEncoding and the rate beside it.

    Raises:
        UnsupportedOptionError: there is no such encoding, or not at this rate.
    """
    audio_format = RIVA_ENCODINGS.get(encoding)
    if audio_format is None:
        raise _unknown("encoding", encoding, RIVA_ENCODINGS)
    return OutputFormat(audio_format, sample_rate_hz)


def parse_elevenlabs_format(output_format: str) -> OutputFormat:
    """Read `output_format`: codec_rate, or codec_rate_kbps for lossy codecs.

    Raises:
        UnsupportedOptionError: it is not of this form, or there is no such codec, rate or bit rate.
    """
    match = _ELEVENLABS_NAME.fullmatch(output_format)
    named = _elevenlabs_codec(match) if match else None
    if match is None or named is None:
        forms = [f"{codec}_RATE" for codec in _ELEVENLABS_WITHOUT_BIT_RATE]
        forms += [f"{codec}_RATE_KBPS" for codec in _ELEVENLABS_WITH_BIT_RATE]
        raise _unknown("output_format", output_format, (*forms, f"such as {DEFAULT_ELEVENLABS_FORMAT} and pcm_16000"))
    kbps = match["kbps"]
    try:
        return OutputFormat(named, int(match["rate"]), int(kbps) if kbps else None)
    except UnsupportedOptionError as error:
        raise UnsupportedOptionError(f"output_format {output_format!r}: {error}", param="output_format") from error


def _elevenlabs_codec(match: re.Match[str]) -> AudioFormat | None:
    codecs = _ELEVENLABS_WITH_BIT_RATE if match["kbps"] else _ELEVENLABS_WITHOUT_BIT_RATE
    return codecs.get(match["codec"])


def _unknown(param: str, got: str, supported: Iterable[str]) -> UnsupportedOptionError:
    return UnsupportedOptionError(f"got {param} {got!r}, supported are {', '.join(supported)}", param=param)
