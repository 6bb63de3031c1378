"""Prompt audio as callers send it: encoded bytes to mono 16 kHz samples, the rules a prompt must meet, and resampling.

It knows nothing of models. Everything is bounded before it is decoded, because the bytes come from outside.
"""

from __future__ import annotations

import io
import struct
from functools import lru_cache
from itertools import pairwise
from math import ceil

import numpy as np
import soundfile
import soxr

from token2wav_service.contract import MAX_PROMPT_SECONDS, PROMPT_SAMPLE_RATE_HZ
from token2wav_service.errors import InvalidPromptError
from token2wav_service.types import FloatArray

MIN_PROMPT_SECONDS = 0.12
"""Seconds of the shortest prompt: three speech tokens, the flow's look-ahead."""
MAX_FILE_BYTES = 32 * 1024 * 1024
"""Most bytes of a file: more than 18 s in stereo, 96 kHz, 64-bit float."""

_MAX_CHANNELS = 8
_MIN_RATE_HZ, _MAX_RATE_HZ = 4_000, 192_000
_SILENCE_PEAK = 1e-3
"""Largest deviation from the mean that still counts as silence: -60 dB."""
_FRAME_SAMPLES = PROMPT_SAMPLE_RATE_HZ // 50
_LONGEST_SILENT_FRAMES, _KEPT_FRAMES = 40, 15
"""Silence of more than 0.8 s is shortened to 0.3 s at each side that touches speech."""
_SILENCE_SHARE = 10 ** (-30 / 20)
"""Of the loudest frame: what is 30 dB below it is silence, as between a quiet room and speech."""
_CANCELLED_SHARE = 0.1
"""Of the channels' mean power; the mix of eight channels with one in use has an eighth."""
_MAX_PEAK = 2.0
"""Largest sample: decoders overshoot 1 a little; beyond this the samples are integers that nobody scaled."""
_STREAMED_WAV_BYTES = 0x7FFF_0000
"""Length in a header, from which on it has no meaning: writers that can't seek back put it there."""
_UNKNOWN_FRAMES = 2**63 - 1
"""What libsndfile gives as the length of a FLAC file that was written as a stream."""
_ESTIMATED_LENGTH_FORMATS = frozenset({"MP3", "MPEG"})
"""Formats whose headers only estimate the length, so a shorter body is no sign of damage."""


def load_prompt_audio(data: bytes) -> FloatArray:
    """Decode an audio file of any format, rate and channel count that soundfile reads.

    A file of more than 18 s is refused by its header, before it is decoded.

    Returns:
        [N] mono float32 at 16 kHz.

    Raises:
        InvalidPromptError: not a sound file, damaged, empty, too large, too long, or with NaN or infinity in it.
    """
    _check_size(data)
    _check_wav_is_whole(data)
    try:
        with _ForwardSoundFile(_SeekableBytes(data)) as file:
            _check_header(file)
            samples, rate_hz = _decode(file), int(file.samplerate)
    except soundfile.SoundFileError as err:
        raise InvalidPromptError(
            f"the prompt audio can't be read ({_reason(err)}); got {len(data)} bytes that start with {data[:4]!r}, "
            f"expected a complete WAV, FLAC, OGG or MP3 file; re-encode it, for example as 16-bit WAV"
        ) from err
    mono = _mixed_down(samples)
    _check_finite(mono)
    return resample(mono, rate_hz, PROMPT_SAMPLE_RATE_HZ)


def validate_prompt(samples: FloatArray) -> None:
    """Refuse a prompt that no voice can be made from.

    Args:
        samples: [N] mono float32 in +-1 at 16 kHz; 120 ms to 18 s.

    Raises:
        InvalidPromptError: wrong shape, too short, too long, silent, not finite, or not scaled to +-1.
    """
    if samples.ndim != 1:
        raise InvalidPromptError(f"got a prompt of shape {samples.shape}, expected [N] mono samples; mix it down")
    seconds = len(samples) / PROMPT_SAMPLE_RATE_HZ
    if len(samples) < ceil(MIN_PROMPT_SECONDS * PROMPT_SAMPLE_RATE_HZ):
        raise InvalidPromptError(
            f"the prompt is {seconds * 1000:.0f} ms long, expected at least {MIN_PROMPT_SECONDS * 1000:.0f} ms "
            f"of speech; give 3 to 10 seconds for a good likeness"
        )
    if len(samples) > MAX_PROMPT_SECONDS * PROMPT_SAMPLE_RATE_HZ:
        raise _too_long(seconds)
    _check_finite(samples)
    peak = float(np.abs(samples).max())
    if peak > _MAX_PEAK:
        raise InvalidPromptError(
            f"the prompt's samples reach {peak:.4g}, expected float samples in +-1; divide 16-bit samples by 32768"
        )
    if float(np.abs(samples - samples.mean()).max()) < _SILENCE_PEAK:
        raise InvalidPromptError(
            f"the prompt is silent (peak {peak:.1e}, expected at least {_SILENCE_PEAK}); give a recording of speech"
        )


def without_long_silence(samples: FloatArray) -> FloatArray:
    """Shorten a prompt's long silences, before, behind and within its speech: an LLM that goes on from one is silent.

    Args:
        samples: [N] mono float32 at 16 kHz, not silent.

    Returns:
        [M], M <= N; the samples themselves if there is nothing to cut.
    """
    frames = samples[: len(samples) // _FRAME_SAMPLES * _FRAME_SAMPLES].reshape(-1, _FRAME_SAMPLES).std(axis=1)
    sounds = np.flatnonzero(frames >= _SILENCE_SHARE * frames.max(initial=0))
    keeps = np.ones(len(samples), np.bool_)
    edges = [-_KEPT_FRAMES - 1, *sounds, len(frames) + _KEPT_FRAMES]
    for before, after in pairwise(edges):
        quiet = min(after, len(frames)) - max(before + 1, 0)
        if quiet > _LONGEST_SILENT_FRAMES:
            keeps[(before + 1 + _KEPT_FRAMES) * _FRAME_SAMPLES : (after - _KEPT_FRAMES) * _FRAME_SAMPLES] = False
    return samples if keeps.all() else samples[keeps]


class _SeekableBytes(io.BytesIO):
    """Damaged files have libsndfile seek before their beginning; an error would be lost in C with its traceback."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go there, or stay where that is no place."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


class _ForwardSoundFile(soundfile.SoundFile):  # type: ignore[misc]  # the package has no types
    """Seeks after no read, which a FLAC file without a length does not allow."""

    def seekable(self) -> bool:
        """Say no."""
        return False


def _reason(error: soundfile.SoundFileError) -> str:
    """Return what libsndfile says, without the name of what it read, which is an object's address here."""
    known = error.error_string if isinstance(error, soundfile.LibsndfileError) else str(error)
    return str(known).rstrip(". ")


def _check_size(data: bytes) -> None:
    if not data:
        raise InvalidPromptError("the prompt audio is empty (0 bytes); send a WAV, FLAC, OGG or MP3 file")
    if len(data) > MAX_FILE_BYTES:
        raise InvalidPromptError(
            f"the prompt audio has {len(data)} bytes, expected at most {MAX_FILE_BYTES}; "
            f"send at most {MAX_PROMPT_SECONDS:.0f} s of mono speech"
        )


def _check_wav_is_whole(data: bytes) -> None:
    """Check a WAV's chunk lengths, as decoders play the rest of a cut file without an error."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return
    offset, header = 12, struct.Struct("<4sI")
    while offset + header.size <= len(data):
        kind, size = header.unpack_from(data, offset)
        offset += header.size
        if kind == b"data":
            if offset + size > len(data) and size < _STREAMED_WAV_BYTES:
                raise InvalidPromptError(
                    f"the WAV file is truncated: its header declares {size} bytes of samples and {len(data) - offset} "
                    f"are there; send the whole file"
                )
            return
        offset += size + size % 2
    raise InvalidPromptError(
        f"the WAV file is truncated: its {len(data)} bytes end before any samples; send the whole file"
    )


def _check_header(file: soundfile.SoundFile) -> None:
    if not _MIN_RATE_HZ <= file.samplerate <= _MAX_RATE_HZ:
        raise InvalidPromptError(
            f"the prompt's sample rate is {file.samplerate} Hz, expected {_MIN_RATE_HZ} to {_MAX_RATE_HZ} Hz; "
            f"resample it"
        )
    if file.channels > _MAX_CHANNELS:
        raise InvalidPromptError(
            f"the prompt has {file.channels} channels, expected at most {_MAX_CHANNELS}; mix it down to mono"
        )
    if _UNKNOWN_FRAMES > file.frames > MAX_PROMPT_SECONDS * file.samplerate:
        raise _too_long(file.frames / file.samplerate)


def _decode(file: soundfile.SoundFile) -> FloatArray:
    """Read [N, channels]; one frame more than allowed at most, whatever the header said."""
    limit = int(MAX_PROMPT_SECONDS * file.samplerate)
    samples: FloatArray = file.read(min(limit + 1, file.frames), dtype="float32", always_2d=True)
    if not len(samples):
        raise InvalidPromptError("the prompt audio holds no samples; send a recording of speech")
    if len(samples) > limit:
        raise _too_long(len(samples) / file.samplerate)
    if len(samples) < file.frames < _UNKNOWN_FRAMES and file.format not in _ESTIMATED_LENGTH_FORMATS:
        raise InvalidPromptError(
            f"the {file.format} file is truncated: {len(samples)} of {file.frames} frames could be read; send all of it"
        )
    return samples


def _mixed_down(samples: FloatArray) -> FloatArray:
    """Return [N] of [N, channels]: their mean, or the loudest where they cancel each other out."""
    channels = np.ascontiguousarray(samples.T)
    mean = channels.mean(axis=0)
    powers = np.einsum("cn,cn->c", channels, channels)
    has_cancelled = np.einsum("n,n", mean, mean) < _CANCELLED_SHARE * powers.mean(dtype=np.float64)
    mono: FloatArray = channels[powers.argmax()] if has_cancelled else mean
    return mono


def _check_finite(samples: FloatArray) -> None:
    bad = len(samples) - int(np.isfinite(samples).sum())
    if bad:
        raise InvalidPromptError(
            f"{bad} of the prompt's {len(samples)} samples are NaN or infinite, expected finite values in +-1; "
            f"record or convert it again"
        )


def _too_long(seconds: float) -> InvalidPromptError:
    return InvalidPromptError(
        f"the prompt is {seconds:.2f} s long, expected at most {MAX_PROMPT_SECONDS:.0f} s; cut it to its clearest part"
    )


_ORIGINAL, _NEW = 2, 3
"""Ratio of the sample rates 16 kHz and 24 kHz, reduced."""
_PERIODS = 32
"""Of the ratio in one window: a window of one, 16 samples for 3, copies each sample eight times."""
_LOWPASS_ZEROS = 6
"""Zero crossings of the sinc on each side."""
_ROLLOFF = 0.99
"""Cutoff as a share of the lower Nyquist frequency."""


def resample_16k_to_24k(audio_16k: FloatArray) -> FloatArray:
    """Resample with torchaudio's default windowed sinc, without torchaudio.

    Source: specification section 10 (kernel computed in float64, applied in float32).

    Args:
        audio_16k: [N] float32.

    Returns:
        [ceil(3 N / 2)] float32.
    """
    kernel, width = _sinc_kernel()
    padded = np.pad(np.asarray(audio_16k, np.float32), (width, kernel.shape[1]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[1])[:: _ORIGINAL * _PERIODS]
    # NOTE: NumPy multiplies windows that share memory without BLAS, which takes three times as long.
    interleaved: FloatArray = (np.ascontiguousarray(windows) @ kernel.T).reshape(-1)
    return interleaved[: ceil(_NEW * len(audio_16k) / _ORIGINAL)]


def resample(samples: FloatArray, from_hz: int, to_hz: int) -> FloatArray:
    """Resample [N] float32 to [N * to_hz / from_hz], rounded, in SoX's high quality."""
    resampled: FloatArray = samples if from_hz == to_hz else soxr.resample(samples, from_hz, to_hz)
    return resampled


@lru_cache(maxsize=1)
def _sinc_kernel() -> tuple[FloatArray, int]:
    """Return [3 * _PERIODS, taps] float32 (one row for each output of a window) and the zeros to put in front."""
    cutoff = min(_ORIGINAL, _NEW) * _ROLLOFF
    width = ceil(_LOWPASS_ZEROS * _ORIGINAL / cutoff)
    taps = np.arange(-width, width + _ORIGINAL) / _ORIGINAL
    phases = np.arange(0, -_NEW, -1)[:, None] / _NEW
    t = np.clip((phases + taps[None, :]) * cutoff, -_LOWPASS_ZEROS, _LOWPASS_ZEROS)
    window = np.cos(t * np.pi / _LOWPASS_ZEROS / 2) ** 2
    phased = (np.sinc(t) * window * cutoff / _ORIGINAL).astype(np.float32)
    ends = [(_ORIGINAL * period, _ORIGINAL * (_PERIODS - 1 - period)) for period in range(_PERIODS)]
    return np.concatenate([np.pad(phased, ((0, 0), zeros)) for zeros in ends]), width
