"""Which audio can be asked for: format, sample rate and bit rate, checked against what the codecs take, and what each
protocol calls the formats. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from gateway.errors import UnsupportedOptionError
from token2wav_service.contract import SAMPLE_RATE_HZ

MIN_SAMPLE_RATE_HZ = 8000
MAX_SAMPLE_RATE_HZ = 48000
_BITS_PER_KBIT = 1000
# MPEG-1 audio starts at 32 kHz; MPEG-2 and 2.5, below it, have other bit rates.
_MPEG1_MIN_SAMPLE_RATE_HZ = 32000
_MPEG1_LAYER3_KBPS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG2_LAYER3_KBPS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MPEG_SAMPLE_RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_OPUS_SAMPLE_RATES_HZ = (8000, 12000, 16000, 24000, 48000)
_OPUS_KBPS = range(6, 257)
_AAC_MIN_KBPS = 8
# An AAC frame of 1024 samples holds at most 6144 bits a channel.
_AAC_MAX_BITS_PER_SAMPLE = 6
# Transparent or close to it for mono speech up to 12 kHz.
_DEFAULT_KBPS = 64


class AudioFormat(str, Enum):
    """What the bytes are, codec and container together; always mono."""

    MP3 = "mp3"
    OPUS = "opus"
    """Opus in Ogg."""
    AAC = "aac"
    """AAC of low complexity, in ADTS."""
    FLAC = "flac"
    WAV = "wav"
    PCM = "pcm"
    """Signed 16-bit little endian, no header."""
    MULAW = "mulaw"
    """G.711, no header."""
    ALAW = "alaw"
    """G.711, no header."""

    @property
    def media_type(self) -> str:
        """The content type of such bytes."""
        return _MEDIA_TYPES[self]


@dataclass(frozen=True)
class OutputFormat:
    """One kind of audio that a caller asked for.

    Raises:
        UnsupportedOptionError: the format has no such sample rate or bit rate.
    """

    audio_format: AudioFormat
    sample_rate_hz: int = SAMPLE_RATE_HZ
    bit_rate_kbps: int | None = None
    """Thousand bits a second; None: the format's own, the only one for formats without loss."""

    def __post_init__(self) -> None:
        rates: Sequence[int] = range(MIN_SAMPLE_RATE_HZ, MAX_SAMPLE_RATE_HZ + 1)
        if self.audio_format in (AudioFormat.MP3, AudioFormat.AAC):
            rates = _MPEG_SAMPLE_RATES_HZ
        if self.sample_rate_hz not in rates:
            got = f"got a sample rate of {self.sample_rate_hz} Hz for {self.audio_format.value}"
            raise UnsupportedOptionError(f"{got}, supported are {_listed(rates)}", param="sample_rate_hz")
        supported = self._bit_rates_kbps()
        if self.bit_rate_kbps is not None and self.bit_rate_kbps not in supported:
            got = f"got {self.bit_rate_kbps} kbit/s for {self.audio_format.value} at {self.sample_rate_hz} Hz"
            expected = f"supported are {_listed(supported)}" if supported else "it takes no bit rate; leave it out"
            raise UnsupportedOptionError(f"{got}, {expected}", param="bit_rate_kbps")

    @property
    def codec_rate_hz(self) -> int:
        """The rate that the codec works at.

        Opus is always played at 48 kHz, and the rate it was coded at only bounds its bandwidth, so that any rate is
        served by the next one up that Opus has.
        """
        if self.audio_format is AudioFormat.OPUS:
            return next(rate for rate in _OPUS_SAMPLE_RATES_HZ if rate >= self.sample_rate_hz)
        return self.sample_rate_hz

    @property
    def codec_bit_rate_bps(self) -> int:
        """Bits per second of a lossy codec."""
        return (self.bit_rate_kbps or _DEFAULT_KBPS) * _BITS_PER_KBIT

    def _bit_rates_kbps(self) -> Sequence[int]:
        if self.audio_format is AudioFormat.MP3:
            is_mpeg1 = self.sample_rate_hz >= _MPEG1_MIN_SAMPLE_RATE_HZ
            return _MPEG1_LAYER3_KBPS if is_mpeg1 else _MPEG2_LAYER3_KBPS
        if self.audio_format is AudioFormat.OPUS:
            return _OPUS_KBPS
        if self.audio_format is AudioFormat.AAC:
            return range(_AAC_MIN_KBPS, self.sample_rate_hz * _AAC_MAX_BITS_PER_SAMPLE // _BITS_PER_KBIT + 1)
        return ()


_MEDIA_TYPES = {
    AudioFormat.WAV: "audio/wav",
    AudioFormat.PCM: "audio/pcm",
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.OPUS: "audio/ogg",
    AudioFormat.AAC: "audio/aac",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.MULAW: "audio/pcmu",
    AudioFormat.ALAW: "audio/pcma",
}


def _listed(values: Sequence[int]) -> str:
    if isinstance(values, range):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


OPENAI_FORMATS: Mapping[str, AudioFormat] = {
    **{kind.value: kind for kind in AudioFormat},
    **dict.fromkeys(("pcm_mulaw", "ulaw", "g711_ulaw"), AudioFormat.MULAW),
    **dict.fromkeys(("pcm_alaw", "g711_alaw"), AudioFormat.ALAW),
}
"""`response_format` of POST /v1/audio/speech: OpenAI's six, and those of telephones by FFmpeg's and OpenAI's names."""
AUDIO_TYPES = tuple(kind.media_type for kind in AudioFormat)
"""Their media types."""

TELEPHONE_SAMPLE_RATE_HZ = 8000
_TELEPHONE_FORMATS = (AudioFormat.MULAW, AudioFormat.ALAW)

RIVA_ENCODINGS: Mapping[str, AudioFormat] = {
    "LINEAR_PCM": AudioFormat.PCM,
    "FLAC": AudioFormat.FLAC,
    "MULAW": AudioFormat.MULAW,
    "OGGOPUS": AudioFormat.OPUS,
    "ALAW": AudioFormat.ALAW,
}
"""Formats by the names of nvidia.riva.AudioEncoding's values."""

DEFAULT_ELEVENLABS_FORMAT = "mp3_44100_128"
"""Format that ElevenLabs sends if no `output_format` is given."""

_ELEVENLABS_WITHOUT_BIT_RATE = {
    "pcm": AudioFormat.PCM,
    "wav": AudioFormat.WAV,
    "ulaw": AudioFormat.MULAW,
    "alaw": AudioFormat.ALAW,
}
_ELEVENLABS_WITH_BIT_RATE = {"mp3": AudioFormat.MP3, "opus": AudioFormat.OPUS}
_ELEVENLABS_NAME = re.compile(r"(?P<codec>[a-z0-9]+)_(?P<rate>[0-9]{4,5})(?:_(?P<kbps>[0-9]{1,3}))?", re.ASCII)


@lru_cache(maxsize=64)
def parse_openai_format(response_format: str, sample_rate_hz: int | None = None) -> OutputFormat:
    """Read `response_format`.

    Args:
        response_format: one of `OPENAI_FORMATS`.
        sample_rate_hz: None: 24 kHz, which OpenAI's clients take for granted; of mu-law and A-law 8 kHz.

    Raises:
        UnsupportedOptionError: there is no such format, or not at this rate.
    """
    audio_format = OPENAI_FORMATS.get(response_format)
    if audio_format is None:
        raise _unknown("response_format", response_format, OPENAI_FORMATS)
    usual_hz = TELEPHONE_SAMPLE_RATE_HZ if audio_format in _TELEPHONE_FORMATS else SAMPLE_RATE_HZ
    try:
        return OutputFormat(audio_format, usual_hz if sample_rate_hz is None else sample_rate_hz)
    except UnsupportedOptionError as error:
        raise UnsupportedOptionError(str(error), param="sample_rate") from error


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
    codecs = _ELEVENLABS_WITH_BIT_RATE if match and match["kbps"] else _ELEVENLABS_WITHOUT_BIT_RATE
    named = codecs.get(match["codec"]) if match else None
    if match is None or named is None:
        forms = [f"{codec}_RATE" for codec in _ELEVENLABS_WITHOUT_BIT_RATE]
        forms += [f"{codec}_RATE_KBPS" for codec in _ELEVENLABS_WITH_BIT_RATE]
        raise _unknown("output_format", output_format, (*forms, f"such as {DEFAULT_ELEVENLABS_FORMAT} and pcm_16000"))
    kbps = match["kbps"]
    try:
        return OutputFormat(named, int(match["rate"]), int(kbps) if kbps else None)
    except UnsupportedOptionError as error:
        raise UnsupportedOptionError(f"output_format {output_format!r}: {error}", param="output_format") from error


def _unknown(param: str, got: str, supported: Iterable[str]) -> UnsupportedOptionError:
    return UnsupportedOptionError(f"got {param} {got!r}, supported are {', '.join(supported)}", param=param)
