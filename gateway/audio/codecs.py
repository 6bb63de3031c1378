"""What turns samples into bytes; here those that need nothing but numpy. Knows nothing of rates and speed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from gateway.audio.pcm import streaming_wav_header, to_pcm16
from gateway.core import FloatArray

_WAV_HEADER_BYTES = 44
_RIFF_LENGTH_AT = 4
_DATA_LENGTH_AT = 40


class Codec(Protocol):
    """Samples in, bytes out."""

    def encode(self, samples: FloatArray) -> bytes:
        """Take [N] samples in +-1 at the codec's rate, N may be 0; return the bytes that are ready."""
        ...

    def finish(self) -> bytes:
        """Return the rest; the bytes are then a whole file."""
        ...

    def close(self) -> None:
        """Free the codec, finished or not; may be called again."""
        ...


class StatelessCodec:
    """Turns each sample into bytes of its own, with an optional header before the first."""

    def __init__(self, encode: Callable[[FloatArray], bytes], header: bytes = b"") -> None:
        """Keep how samples are converted."""
        self._encode = encode
        self._header = header

    def encode(self, samples: FloatArray) -> bytes:
        """See `Codec`."""
        header, self._header = self._header, b""
        return header + self._encode(samples)

    def finish(self) -> bytes:
        """See `Codec`."""
        header, self._header = self._header, b""
        return header

    def close(self) -> None:
        """See `Codec`; there is nothing to free."""


def streaming_wav_codec(sample_rate_hz: int) -> StatelessCodec:
    """Make a codec for a mono 16-bit WAV whose length nobody knows yet."""
    return StatelessCodec(to_pcm16, streaming_wav_header(sample_rate_hz))


def with_true_wav_sizes(wav: bytes) -> bytes:
    """Write the true sizes into a whole WAV made by `streaming_wav_codec`."""
    sized = bytearray(wav)
    struct.pack_into("<I", sized, _RIFF_LENGTH_AT, len(wav) - _RIFF_LENGTH_AT - struct.calcsize("<I"))
    struct.pack_into("<I", sized, _DATA_LENGTH_AT, len(wav) - _WAV_HEADER_BYTES)
    return bytes(sized)
