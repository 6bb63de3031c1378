"""Sounds to encode, ways to cut them, and how far one is from another."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import soundfile
from hypothesis import strategies as st

from gateway.audio import AudioEncoder, AudioFormat
from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ


def tone(frequency_hz: float, samples: int, rate_hz: int = SAMPLE_RATE_HZ, amplitude: float = 0.5) -> FloatArray:
    """Return [samples] of a sine."""
    return np.asarray(amplitude * np.sin(2 * np.pi * frequency_hz * np.arange(samples) / rate_hz), np.float32)


@lru_cache
def speech_like(samples: int) -> FloatArray:
    """Return [samples] of a voice-like sound that fits onto itself at no other place: a hum that rises and swells."""
    time_s = np.arange(samples) / SAMPLE_RATE_HZ
    phase = 2 * np.pi * (120 * time_s + 60 * time_s**2)
    hum = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 12))
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 3.1 * time_s)
    made: FloatArray = (0.2 * hum * swell).astype(np.float32)
    made.setflags(write=False)
    return made


def hard_to_encode(samples: int) -> dict[str, FloatArray]:
    """Return sounds of [samples] by name: noise, clipped noise, silence, and speech with pauses, dead and faint."""
    noise = np.random.default_rng(0).normal(size=samples).astype(np.float32)
    dead, faint = speech_like(samples).copy(), speech_like(samples).copy()
    pause = slice(samples // 3, samples // 2)
    dead[pause], faint[pause] = 0, 1e-4 * noise[pause]
    silence = np.zeros(samples, np.float32)
    return {"noise": 0.3 * noise, "clipped": 3 * noise, "silence": silence, "dead pause": dead, "faint pause": faint}


def cut(samples: FloatArray, lengths: list[int]) -> list[FloatArray]:
    """Cut into pieces of these lengths, the last taking the rest."""
    return np.split(samples, np.minimum(np.cumsum(lengths), len(samples))) if lengths else [samples]


piece_lengths = st.lists(st.integers(0, 4000), max_size=8)


def encoded(encoder: AudioEncoder, pieces: list[FloatArray]) -> bytes:
    """Return all bytes of an encoder fed with pieces."""
    with encoder:
        return b"".join([*map(encoder.encode, pieces), encoder.finish()])


def snr_db(got: FloatArray, wanted: FloatArray) -> float:
    """Return how loud `wanted` is over the difference."""
    noise = np.square(got - wanted, dtype=np.float64).sum()
    return float(10 * np.log10(np.square(wanted, dtype=np.float64).sum() / max(noise, 1e-30)))


def best_lag(got: FloatArray, wanted: FloatArray, max_samples: int) -> tuple[int, float]:
    """Return by how many samples `got` comes later, and its correlation with `wanted` there."""
    count = len(wanted)
    heard = np.pad(got.astype(np.float64), (0, max_samples + count))[: max_samples + count - 1]
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (heard, heard**2))
    sum_of, square_of = (each[count:] - each[:max_samples] for each in (sums, squares))  # of the part at each lag
    centred = wanted - wanted.mean(dtype=np.float64)
    spread = np.sqrt(np.maximum(square_of - sum_of**2 / count, 1e-30) * np.square(centred).sum())
    size = 1 << (len(heard) + count).bit_length()
    products = np.fft.irfft(np.fft.rfft(heard, size) * np.fft.rfft(centred[::-1], size), size)
    scores = products[count - 1 : count - 1 + max_samples] / spread
    lag = int(np.argmax(scores))
    return lag, float(scores[lag])


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


def _floats(amplitudes: npt.NDArray[Any]) -> FloatArray:
    scale = 32768 if amplitudes.dtype == np.int16 else 1
    return np.asarray(amplitudes[0], np.float32) / scale
