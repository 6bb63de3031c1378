"""Recordings as telephones and browsers make them."""

from __future__ import annotations

import io
import struct

import av
import numpy as np

from tests.gateway.audio.signals import speech_like
from token2wav_service.contract import SAMPLE_RATE_HZ

FORMATS = {
    "m4a": ("mp4", "aac"),
    "webm": ("webm", "libopus"),
    "aac": ("adts", "aac"),
}
"""Name of a file -> FFmpeg's muxer and encoder."""
RATE_HZ = 48_000
BIT_RATE_BPS = 96_000


def recording(name: str, seconds: float = 2.0, channels: int = 1) -> bytes:
    """Return a file of a sound that is like speech; -2 channels are two in antiphase."""
    muxer, encoder = FORMATS[name]
    file = io.BytesIO()
    layout = "mono" if channels == 1 else "stereo"
    with av.open(file, "w", format=muxer) as container:
        stream = container.add_stream(encoder, rate=RATE_HZ)
        stream.layout, stream.bit_rate = layout, BIT_RATE_BPS
        samples = np.repeat(speech_like(int(seconds * SAMPLE_RATE_HZ)), RATE_HZ // SAMPLE_RATE_HZ)
        frame = av.AudioFrame.from_ndarray(
            (np.array([[1], [np.sign(channels)]])[: abs(channels)] * samples * 32767).astype(np.int16),
            format="s16p",
            layout=layout,
        )
        frame.sample_rate = RATE_HZ
        fitting = av.AudioResampler(stream.format, layout, RATE_HZ, frame_size=stream.codec_context.frame_size or 960)
        for each in [*fitting.resample(frame), *fitting.resample(None)]:
            container.mux(stream.encode(each))
        container.mux(stream.encode(None))
    return file.getvalue()


def matroska(rate_hz: float = RATE_HZ, channels: int = 1) -> bytes:
    """Return a WebM-like file of a second of PCM whose header says any rate and number of channels."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE_HZ)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, RATE_HZ), np.int16), format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    rate, count = b"\xb5\x88" + struct.pack(">d", RATE_HZ), b"\x9f\x81\x01"
    assert rate in file.getvalue() and count in file.getvalue()
    wrong_rate, wrong_count = b"\xb5\x88" + struct.pack(">d", rate_hz), b"\x9f\x81" + bytes([channels])
    return file.getvalue().replace(rate, wrong_rate, 1).replace(count, wrong_count, 1)


def silent_film() -> bytes:
    """Return an MPEG-4 file with pictures only."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 16
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))))
        container.mux(stream.encode(None))
    return file.getvalue()
