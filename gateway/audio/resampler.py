"""Another sample rate, while the audio is made. Knows nothing of codecs."""

from __future__ import annotations

import numpy as np
import soxr

from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ

# Passes 91 % of the narrower band and keeps what would fold back under 16-bit noise.
_QUALITY = "HQ"


class Resampler:
    """Converts 24 kHz audio to one other rate; output is the same however the input is cut."""

    def __init__(self, to_rate_hz: int) -> None:
        """Open a stream; it holds 20 to 80 ms back, the more the lower the rate."""
        self._stream = soxr.ResampleStream(SAMPLE_RATE_HZ, to_rate_hz, 1, dtype="float32", quality=_QUALITY)

    def push(self, samples: FloatArray) -> FloatArray:
        """Take [N] samples and return those that are ready."""
        return np.asarray(self._stream.resample_chunk(samples), np.float32)

    def finish(self) -> FloatArray:
        """Return the samples held back, so that the whole is as long as the input was."""
        return np.asarray(self._stream.resample_chunk(np.zeros(0, np.float32), last=True), np.float32)
