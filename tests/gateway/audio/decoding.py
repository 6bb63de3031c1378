"""Reads encoded audio back with PyAV, as players do."""

from __future__ import annotations

import io

import av
import numpy as np

from gateway.audio import AudioFormat
from gateway.core import FloatArray

_RAW_DEMUXERS = {AudioFormat.PCM: "s16le", AudioFormat.MULAW: "mulaw", AudioFormat.ALAW: "alaw"}


def decoded(data: bytes, audio_format: AudioFormat, rate_hz: int) -> tuple[FloatArray, int]:
    """Return [N] samples in +-1 and their rate; `rate_hz` is what formats without a header were made at."""
    demuxer = _RAW_DEMUXERS.get(audio_format)
    options = {"sample_rate": str(rate_hz), "ch_layout": "mono"} if demuxer else {}
    with av.open(io.BytesIO(data), format=demuxer, options=options) as container:
        stream = container.streams.audio[0]
        parts = [_floats(frame.to_ndarray()) for frame in container.decode(stream)]
        return np.concatenate([np.zeros(0, np.float32), *parts]), stream.rate


def _floats(amplitudes: np.ndarray) -> FloatArray:
    scale = 32768 if amplitudes.dtype == np.int16 else 1
    return amplitudes[0].astype(np.float32) / scale
