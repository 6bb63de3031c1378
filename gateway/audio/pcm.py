"""Float samples to the bytes that players take. Pure."""

from __future__ import annotations

import struct

import numpy as np

from gateway.core import FloatArray

PCM16_BYTES = 2
PCM16_FULL_SCALE = 32767
UNKNOWN_LENGTH = 0xFFFFFFFF
"""Written where a length belongs that is not known yet; players then read to the end."""
_FMT_CHUNK_BYTES = 16
_FORMAT_PCM = 1
_MONO = 1


def to_pcm16(samples: FloatArray) -> bytes:
    """Convert [N] samples in +-1 to signed 16-bit little endian: clipped, times 32767, truncated."""
    return (np.clip(samples, -1.0, 1.0) * PCM16_FULL_SCALE).astype("<i2").tobytes()


def streaming_wav_header(sample_rate_hz: int) -> bytes:
    """Return the 44-byte header of a mono 16-bit WAV whose length is not known yet."""
    fmt = struct.pack(
        "<4sIHHIIHH",
        b"fmt ",
        _FMT_CHUNK_BYTES,
        _FORMAT_PCM,
        _MONO,
        sample_rate_hz,
        sample_rate_hz * PCM16_BYTES,
        PCM16_BYTES,
        PCM16_BYTES * 8,
    )
    riff = struct.pack("<4sI4s", b"RIFF", UNKNOWN_LENGTH, b"WAVE")
    return riff + fmt + struct.pack("<4sI", b"data", UNKNOWN_LENGTH)
