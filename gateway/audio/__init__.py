"""From the pipeline's samples to the bytes that a caller asked for: formats, sample rates, speed; incremental."""

from gateway.audio.encoder import AsyncEncoder, AudioEncoder, encode_whole, load_codecs
from gateway.audio.formats import (
    DEFAULT_ELEVENLABS_FORMAT,
    AudioFormat,
    OutputFormat,
    parse_elevenlabs_format,
    parse_openai_format,
    parse_riva_format,
)

__all__ = [
    "DEFAULT_ELEVENLABS_FORMAT",
    "AsyncEncoder",
    "AudioEncoder",
    "AudioFormat",
    "OutputFormat",
    "encode_whole",
    "load_codecs",
    "parse_elevenlabs_format",
    "parse_openai_format",
    "parse_riva_format",
]
