"""Decodes one recording in a process of its own, with limits: `python decoder.py DEMUXER SECONDS`.

    standard input: the file ─► standard output: {"rate_hz": ..., "channels": ..., "announced_s": ...}\n and samples
                                              or {"refused": why}\n

The samples have 16 bits and one channel, or two of a file with more: who mixes them down sees whether they cancel.

A file may say anything of itself, and FFmpeg believes it: a header of 2 GHz took 2.7 GB and 20 s. Here the kernel ends
what takes too much, and whatever was taken goes back with the process. Imports nothing of ours, so that it starts soon.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import av

_CPU_S = 5
"""Seconds of CPU; the longest recording that is allowed takes less than one."""
_DATA_BYTES = 192 * 1024 * 1024
"""Most memory, without that of mapped files."""
_MIN_RATE_HZ, _MAX_RATE_HZ = 4_000, 192_000
_MAX_CHANNELS = 8
_SAMPLE_BYTES = 2
_US_PER_S = 1_000_000


class RefusedError(Exception):
    """The recording can't be used; the message goes on from "the WebM file ..."."""


def limit_process() -> None:
    """Have the kernel bound what this process takes; it may write no file."""
    limits = {
        resource.RLIMIT_CPU: _CPU_S,
        resource.RLIMIT_DATA: _DATA_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def decoded(audio: bytes, demuxer: str, max_seconds: float) -> tuple[dict[str, Any], bytes]:
    """Decode the first track of sound.

    Args:
        audio: the file.
        demuxer: FFmpeg's name of the only demuxer that is tried.
        max_seconds: longer recordings are refused as soon as so much is decoded.

    Returns:
        The header and the samples of the answer.

    Raises:
        RefusedError: it holds no sound that can be used.
        av.FFmpegError: it is damaged.
    """
    import av

    # Titles and names of writers may be in any encoding.
    with av.open(io.BytesIO(audio), mode="r", format=demuxer, metadata_errors="replace") as file:
        if not file.streams.audio:
            raise RefusedError("holds no sound; send a recording of speech")
        stream = file.streams.audio[0]
        if stream.codec_context is None or not stream.rate:
            raise RefusedError("holds sound that nothing here can decode")
        rate_hz = _checked_rate(stream.rate, stream.channels)
        channels = min(stream.channels, 2)
        resampler = av.AudioResampler(format="s16", layout="stereo" if channels == 2 else "mono", rate=rate_hz)
        pcm, limit = bytearray(), int(max_seconds * rate_hz) * _SAMPLE_BYTES * channels
        for frame in file.decode(stream):
            _checked_rate(frame.sample_rate, len(frame.layout.channels))
            pcm += _resampled(resampler, frame)
            if len(pcm) > limit:
                raise RefusedError(f"is longer than {max_seconds:.0f} s; cut it to its clearest 3 to 10 seconds")
        pcm += _resampled(resampler, None)
        announced_s = None if file.duration is None else file.duration / _US_PER_S
    return {"rate_hz": rate_hz, "channels": channels, "announced_s": announced_s}, bytes(pcm)


def _checked_rate(rate_hz: int, channels: int) -> int:
    if not _MIN_RATE_HZ <= rate_hz <= _MAX_RATE_HZ or not 1 <= channels <= _MAX_CHANNELS:
        got = f"has {channels} channels at {rate_hz} Hz"
        expected = f"expected 1 to {_MAX_CHANNELS} channels at {_MIN_RATE_HZ} to {_MAX_RATE_HZ} Hz"
        raise RefusedError(f"{got}, {expected}; convert it")
    return rate_hz


def _resampled(resampler: av.AudioResampler, frame: av.AudioFrame | None) -> bytes:
    try:
        return b"".join(
            bytes(each.planes[0])[: each.samples * _SAMPLE_BYTES * len(each.layout.channels)]
            for each in resampler.resample(frame)
        )
    except ValueError as error:
        raise RefusedError("changes its sample rate or channels on the way; send one recording") from error


def main() -> int:
    """Decode standard input; 0 also where it is refused."""
    limit_process()
    import av

    pcm = b""
    try:
        found, pcm = decoded(sys.stdin.buffer.read(), sys.argv[1], float(sys.argv[2]))
        header = json.dumps(found)
    except RefusedError as error:
        header = json.dumps({"refused": str(error)})
    except av.FFmpegError as error:
        # NOTE: the error's own text would show the memory address of the object that was read.
        header = json.dumps({"refused": f"can't be read ({error.strerror}); send the whole file"})
    sys.stdout.buffer.write(header.encode() + b"\n" + pcm)
    return 0


if __name__ == "__main__":
    sys.exit(main())
