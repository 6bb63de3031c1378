"""Recordings of voices in containers that token2wav does not read, made into WAV files by PyAV (the `audio` extra).

    WAV, FLAC, Ogg, MP3, anything unknown ────────────────► token2wav, which reads or refuses it
    MPEG-4 (m4a), WebM, AAC ──► PyAV ──► WAV ────────────►

Telephones record m4a, browsers WebM. Only the first track of sound is decoded, and no more of it than a voice may have.
"""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import InvalidVoicePromptError, UnsupportedOptionError
from gateway.voices.draft import wav_of_pcm16
from token2wav_service.contract import MAX_PROMPT_SECONDS

if TYPE_CHECKING:
    import av

_US_PER_S = 1_000_000
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
        InvalidVoicePromptError: it is in one of `CONTAINERS`, and damaged, without sound or too long.
        UnsupportedOptionError: the same, and PyAV is not installed.
    """
    container = container_of(audio)
    return audio if container is None else await asyncio.to_thread(_as_wav, audio, container)


def _as_wav(audio: bytes, container: Container) -> bytes:
    try:
        import av
    except ImportError as error:
        got = f"the recording is {container.name}, which needs PyAV"
        raise UnsupportedOptionError(f"{got}: the server lacks the extra `audio`; {_INSTEAD}") from error
    try:
        return _decoded(audio, container)
    except av.FFmpegError as error:
        # NOTE: the error's own text would show the memory address of the object that was read.
        got = f"the recording begins as {container.name} but can't be read ({error.strerror})"
        raise InvalidVoicePromptError(f"{got}; send the whole file, {_INSTEAD}") from error


def _decoded(audio: bytes, container: Container) -> bytes:
    import av

    # Titles and names of writers may be in any encoding.
    with av.open(io.BytesIO(audio), mode="r", format=container.demuxer, metadata_errors="replace") as file:
        if not file.streams.audio:
            raise InvalidVoicePromptError(f"the {container.name} file holds no sound; send a recording of speech")
        stream = file.streams.audio[0]
        if stream.codec_context is None or not stream.rate:
            got = f"the {container.name} file holds sound that nothing here can decode"
            raise InvalidVoicePromptError(f"{got}; {_INSTEAD.removeprefix('or ')}")
        rate_hz = stream.rate
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate_hz)
        pcm, limit = bytearray(), int(MAX_PROMPT_SECONDS * rate_hz) * 2
        for frame in file.decode(stream):
            pcm += _resampled(resampler, frame, container)
            if len(pcm) > limit:
                got = f"the {container.name} recording is longer than {MAX_PROMPT_SECONDS:.0f} s"
                raise InvalidVoicePromptError(f"{got}; cut it to its clearest 3 to 10 seconds")
        pcm += _bytes_of(resampler.resample(None))
        _check_is_whole(len(pcm) / 2 / rate_hz, file.duration, container)
    return wav_of_pcm16(bytes(pcm), rate_hz)


def _resampled(resampler: av.AudioResampler, frame: av.AudioFrame, container: Container) -> bytes:
    try:
        return _bytes_of(resampler.resample(frame))
    except ValueError as error:
        got = f"the {container.name} file changes its sample rate or channels on the way"
        raise InvalidVoicePromptError(f"{got}; send one recording, {_INSTEAD}") from error


def _bytes_of(frames: list[av.AudioFrame]) -> bytes:
    return b"".join(frame.to_ndarray().tobytes() for frame in frames)


def _check_is_whole(seconds: float, announced_us: int | None, container: Container) -> None:
    if not seconds:
        raise InvalidVoicePromptError(f"the {container.name} file holds no samples; send a recording of speech")
    if announced_us is not None and announced_us / _US_PER_S > seconds + _LOST_S:
        got = f"the {container.name} file is truncated: {seconds:.1f} of {announced_us / _US_PER_S:.1f} s are there"
        raise InvalidVoicePromptError(f"{got}; send all of it")
