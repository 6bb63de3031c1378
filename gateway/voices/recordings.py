"""Recordings of voices in containers that token2wav does not read, made into WAV files by PyAV (the `audio` extra).

    WAV, FLAC, Ogg, MP3, anything unknown ────────────────► token2wav, which reads or refuses it
    MPEG-4 (m4a), WebM, AAC ──► decoder.py ──► WAV ──────►

Telephones record m4a, browsers WebM. Only the first track of sound is decoded, no more of it than a
voice may have, and in a process with limits of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec

from gateway.audio.codecs import PCM16_BYTES
from gateway.errors import InvalidVoicePromptError, UnsupportedOptionError, VoiceStoreError
from gateway.voices import decoder
from gateway.voices.draft import wav_of_pcm16
from token2wav_service.contract import MAX_PROMPT_SECONDS

logger = logging.getLogger(__name__)

_DECODING = ThreadPoolExecutor(2, thread_name_prefix="decoding")
"""Each waits for one decoder."""
_TIMEOUT_S = 30.0
"""Most seconds that a decoder lives; its CPU time is bounded more tightly, but the machine may be busy."""
_MAX_LOGGED = 1000
_LOST_S = 0.5
"""Seconds that may be missing from a file's announced length; encoders' delays are shorter, more means it was cut."""
_INSTEAD = "or send WAV, FLAC, Ogg or MP3"


@dataclass(frozen=True)
class Container:
    """A kind of file that PyAV has to read."""

    name: str
    """Name of the format in messages."""
    begins: re.Pattern[bytes]
    demuxer: str
    """FFmpeg's name of the only demuxer that is tried."""


CONTAINERS = (
    Container("MPEG-4 (m4a)", re.compile(rb".{4}ftyp", re.DOTALL), "mov"),
    Container("WebM", re.compile(rb"\x1a\x45\xdf\xa3"), "matroska"),
    Container("AAC", re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), "aac"),
)


def container_of(audio: bytes) -> Container | None:
    """Return which of `CONTAINERS` a file is, by its first bytes."""
    return next((each for each in CONTAINERS if each.begins.match(audio)), None)


async def readable(audio: bytes) -> bytes:
    """Return a recording as a file that token2wav reads: itself, or a WAV file made from it.

    Raises:
        InvalidVoicePromptError: it is in one of `CONTAINERS`, and damaged, without sound, too long or too costly.
        UnsupportedOptionError: the same, and PyAV is not installed.
        VoiceStoreError: this machine can't start another process now.
    """
    container = container_of(audio)
    if container is None:
        return audio
    return await asyncio.get_running_loop().run_in_executor(_DECODING, _as_wav, audio, container)


def _as_wav(audio: bytes, container: Container) -> bytes:
    if find_spec("av") is None:
        got = f"the recording is {container.name}, which needs PyAV"
        raise UnsupportedOptionError(f"{got}: the server lacks the extra `audio`; {_INSTEAD}")
    command = [sys.executable, "-I", decoder.__file__, container.demuxer, str(MAX_PROMPT_SECONDS)]
    try:
        done = subprocess.run(command, input=audio, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        stderr = (error.stderr or b"")[-_MAX_LOGGED:].decode("utf-8", "replace")
        logger.warning("decoding a recording was ended: %s %s", error, stderr)
        got = f"the {container.name} recording takes too much memory or time to decode"
        raise InvalidVoicePromptError(f"{got}; send another one, {_INSTEAD}") from error
    except OSError as error:
        raise VoiceStoreError(f"no process can be started that decodes the recording: {error}") from error
    line, _, pcm = done.stdout.partition(b"\n")
    header = json.loads(line)
    if "refused" in header:
        raise InvalidVoicePromptError(f"the {container.name} recording {header['refused']}, {_INSTEAD}")
    channels, rate_hz = header["channels"], header["rate_hz"]
    _check_is_whole(len(pcm) / PCM16_BYTES / channels / rate_hz, header["announced_s"], container)
    return wav_of_pcm16(pcm, rate_hz, channels)


def _check_is_whole(seconds: float, announced_s: float | None, container: Container) -> None:
    if not seconds:
        raise InvalidVoicePromptError(f"the {container.name} recording holds no samples; send a recording of speech")
    if announced_s is not None and announced_s > seconds + _LOST_S:
        got = f"the {container.name} recording is truncated: {seconds:.1f} of {announced_s:.1f} s are there"
        raise InvalidVoicePromptError(f"{got}; send all of it")
