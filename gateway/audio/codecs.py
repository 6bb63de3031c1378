"""What turns samples into bytes with numpy alone: 16-bit PCM, WAV, and telephone audio (mu-law, A-law). Pure.

Telephone audio has one byte a sample, a 16-bit amplitude on a logarithmic scale.
Source: ITU-T G.711; differs in that a sample becomes the byte whose level is nearest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.core import FloatArray

PCM16_BYTES = 2
PCM16_FULL_SCALE = 32767
WAV_HEADER_BYTES = 44
_UNKNOWN_LENGTH = 0xFFFFFFFF
"""Length in a header whose data is not complete yet; players then read to the end."""
_FMT_CHUNK_BYTES, _FORMAT_PCM = 16, 1


def to_pcm16(samples: FloatArray) -> bytes:
    """Convert [N] samples in +-1 to signed 16-bit little endian: clipped, times 32767, truncated."""
    if not -1.0 <= samples.min(initial=0.0) <= samples.max(initial=0.0) <= 1.0:  # clipping takes longer than looking
        samples = np.clip(samples, -1.0, 1.0)
    pcm = np.empty(samples.shape, "<i2")
    np.multiply(samples, PCM16_FULL_SCALE, out=pcm, casting="unsafe")  # in pieces: no array of floats in between
    return pcm.tobytes()


def wav_header(sample_rate_hz: int, data_bytes: int | None = None, channels: int = 1) -> bytes:
    """Return the 44-byte header of a 16-bit WAV; without `data_bytes` its length is not known yet."""
    frame_bytes = channels * PCM16_BYTES
    sizes = (sample_rate_hz, sample_rate_hz * frame_bytes, frame_bytes, PCM16_BYTES * 8)
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", _FMT_CHUNK_BYTES, _FORMAT_PCM, channels, *sizes)
    whole = _UNKNOWN_LENGTH if data_bytes is None else WAV_HEADER_BYTES - struct.calcsize("<4sI") + data_bytes
    data = struct.pack("<4sI", b"data", _UNKNOWN_LENGTH if data_bytes is None else data_bytes)
    return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + fmt + data


IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]

_CODES = np.arange(256, dtype=np.int32)
_SIGN_BIT = 0x80
_SEGMENT_SHIFT = 4
_SEGMENT_MASK, _STEP_MASK = 7, 15
# Amplitudes here have 16 bits where the standard's have 14 (mu-law) and 13 (A-law).
_MULAW_BIAS = 33 << 2
_ALAW_TOGGLED_BITS = 0x55
_ALAW_HALF_STEP = 8
_ALAW_SEGMENT_START = 0x100


class G711Quantizer:
    """Maps samples to the nearest level of a code book."""

    def __init__(self, levels: IntArray) -> None:
        """Sort the 256 16-bit levels, given in the order of their bytes."""
        order = np.argsort(levels, kind="stable")
        self._bytes: ByteArray = order.astype(np.uint8)
        ascending = levels[order].astype(np.float32) / PCM16_FULL_SCALE
        self._borders: FloatArray = (ascending[1:] + ascending[:-1]) / 2

    def encode(self, samples: FloatArray) -> bytes:
        """Convert [N] samples in +-1 to [N] bytes; louder ones become the loudest level."""
        return self._bytes[np.searchsorted(self._borders, samples, side="right")].tobytes()


def mulaw_levels() -> IntArray:
    """Return the [256] int32 amplitudes, 16-bit scale, that mu-law bytes stand for."""
    inverted = ~_CODES
    segment, step = (inverted >> _SEGMENT_SHIFT) & _SEGMENT_MASK, inverted & _STEP_MASK
    magnitude = (((step << 3) + _MULAW_BIAS) << segment) - _MULAW_BIAS
    return np.where(_CODES & _SIGN_BIT, magnitude, -magnitude).astype(np.int32)


def alaw_levels() -> IntArray:
    """Return the [256] int32 amplitudes, 16-bit scale, that A-law bytes stand for."""
    toggled = _CODES ^ _ALAW_TOGGLED_BITS
    segment, step = (toggled >> _SEGMENT_SHIFT) & _SEGMENT_MASK, toggled & _STEP_MASK
    linear = (step << 4) + _ALAW_HALF_STEP
    magnitude = np.where(segment == 0, linear, (linear + _ALAW_SEGMENT_START) << np.maximum(segment - 1, 0))
    return np.where(_CODES & _SIGN_BIT, magnitude, -magnitude).astype(np.int32)


@dataclass
class StatelessCodec:
    """Turns each sample into bytes of its own."""

    convert: Callable[[FloatArray], bytes]
    header: bytes = b""
    """Bytes before those of the first sample."""

    def encode(self, samples: FloatArray) -> bytes:
        """Take [N] samples in +-1 at the codec's rate, N may be 0; return the bytes that are ready."""
        header, self.header = self.header, b""
        return header + self.convert(samples)

    def finish(self) -> bytes:
        """Return the rest; the bytes are then a whole file."""
        header, self.header = self.header, b""
        return header

    def close(self) -> None:
        """Free the codec, finished or not; there is nothing to free."""
