"""Telephone audio: 16-bit amplitudes as one byte on a logarithmic scale, mu-law or A-law.

Source: ITU-T G.711; differs in that a sample becomes the byte whose level is nearest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gateway.audio.pcm import PCM16_FULL_SCALE
from gateway.core import FloatArray

IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]

_CODES = np.arange(256, dtype=np.int32)
_SIGN_BIT = 0x80
_SEGMENT_SHIFT = 4
_SEGMENT_MASK = 7
_STEP_MASK = 15
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
