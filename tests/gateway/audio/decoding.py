"""Reads encoded audio back as players do: with PyAV, and with libsndfile, which shares no encoder with it."""

from __future__ import annotations

import io

import av
import numpy as np
import soundfile

from gateway.audio import AudioFormat
from gateway.core import FloatArray

_FLAC_LENGTH_AT = 22
_READ_SAMPLES = 4096
_RAW_DEMUXERS = {AudioFormat.PCM: "s16le", AudioFormat.MULAW: "mulaw", AudioFormat.ALAW: "alaw"}


def decoded(data: bytes, audio_format: AudioFormat, rate_hz: int) -> tuple[FloatArray, int]:
    """Return [N] samples in +-1 and their rate; `rate_hz` is what formats without a header were made at."""
    demuxer = _RAW_DEMUXERS.get(audio_format)
    options = {"sample_rate": str(rate_hz), "ch_layout": "mono"} if demuxer else {}
    with av.open(io.BytesIO(data), format=demuxer, options=options) as container:
        stream = container.streams.audio[0]
        parts = [_floats(frame.to_ndarray()) for frame in container.decode(stream)]
        return np.concatenate([np.zeros(0, np.float32), *parts]), stream.rate


def decoded_elsewhere(data: bytes, flac_samples: int) -> tuple[FloatArray, int]:
    """Return [N] samples in +-1 and their rate, by libsndfile (libFLAC, libopus, mpg123).

    Args:
        data: FLAC, Ogg Opus or MP3.
        flac_samples: put into a FLAC's header, which is streamed without a length: Python's binding seeks after each
            read, and libFLAC then needs one.
    """
    if data.startswith(b"fLaC"):
        data = data[:_FLAC_LENGTH_AT] + flac_samples.to_bytes(4, "big") + data[_FLAC_LENGTH_AT + 4 :]
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        parts = [np.zeros(0, np.float32)]
        while len(part := file.read(_READ_SAMPLES, dtype="float32")):
            parts.append(part)
        return np.concatenate(parts), file.samplerate


def _floats(amplitudes: np.ndarray) -> FloatArray:
    scale = 32768 if amplitudes.dtype == np.int16 else 1
    return amplitudes[0].astype(np.float32) / scale
