"""One utterance of a teacher as the models' training wants it: every feature cut to whole speech tokens.

All features come from the project's own front end, so training and serving see the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.ears.audio_faults import loudness
from lab.ears.pitch import FRAME_SECONDS, heard_pitch, track_pitch
from lab.train.teachers.flite import PAUSE, RATE_HZ, FloatArray, Segment, Spoken, phone_number
from token2wav_service.features.audio import resample, resample_16k_to_24k
from token2wav_service.features.mel import flow_mel_24k, kaldi_fbank, s3_log_mel

SAMPLES_PER_TOKEN_16K = 640
SAMPLES_PER_TOKEN_24K = 960
TOKENS_A_SECOND = 25
RATE_24K_HZ = 24_000
FRAMES_PER_TOKEN = 2
"""Frames of the flow's mel, the phones and the pitch (50 Hz) for each token."""
LOG_MEL_FRAMES_PER_TOKEN = 4
"""Frames of the speech tokenizer's and the speaker encoder's input (100 Hz) for each token."""
MIN_TOKENS = 10
"""Fewest tokens of an utterance, 0.4 s: anything shorter is an error of the engine."""

SILENT_SHARE = 0.01
"""Of the loudest frame's level (root mean square): no frame below it has a sound."""
SILENT_FRAMES = 5
"""Fewest silent frames of 20 ms in a row that are no stop's closure."""

PCM16_SCALE = 32767.0
"""Stored value of a sample of 1."""

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Layout:
    """Columns of each array for one token, and the type it is stored in."""

    per_token: int
    dtype: type[np.generic]


LAYOUTS = {
    "audio": Layout(SAMPLES_PER_TOKEN_24K, np.int16),
    "log_mel": Layout(LOG_MEL_FRAMES_PER_TOKEN, np.float16),
    "mel": Layout(FRAMES_PER_TOKEN, np.float16),
    "fbank": Layout(LOG_MEL_FRAMES_PER_TOKEN, np.float16),
    "phones": Layout(FRAMES_PER_TOKEN, np.uint8),
    "pitch": Layout(FRAMES_PER_TOKEN, np.float16),
    "phase": Layout(FRAMES_PER_TOKEN, np.float16),
}
"""audio [960 n] at 24 kHz; log_mel [4 n, 128]; mel [2 n, 80]; fbank [4 n, 80]; phones, pitch (Hz), phase (of the
fundamental, in cycles from 0 to 1; -1 where the teacher does not tell it) [2 n]."""


def whole_tokens(spoken: Spoken) -> int:
    """Return how many tokens (25 Hz) the audio fills."""
    return len(spoken.samples) // (spoken.rate_hz // TOKENS_A_SECOND)


def audio_of(spoken: Spoken, rate_hz: int) -> FloatArray:
    """Return all samples of an utterance at another rate."""
    return resample(spoken.samples, spoken.rate_hz, rate_hz)


def audio_16k(spoken: Spoken) -> FloatArray:
    """Return [640 whole tokens] samples at 16 kHz."""
    tokens = whole_tokens(spoken)
    cut = spoken.samples[: tokens * (spoken.rate_hz // TOKENS_A_SECOND)]
    return resample(cut, spoken.rate_hz, RATE_HZ)[: tokens * SAMPLES_PER_TOKEN_16K]


def utterance_arrays(spoken: Spoken) -> Arrays:
    """Compute every feature of LAYOUTS; all have `whole_tokens` times their columns."""
    tokens = whole_tokens(spoken)
    at_16k = audio_16k(spoken)
    is_wide = spoken.rate_hz == RATE_24K_HZ
    audio_24k = spoken.samples[: tokens * SAMPLES_PER_TOKEN_24K] if is_wide else resample_16k_to_24k(at_16k)
    frames = tokens * FRAMES_PER_TOKEN
    pitch = (
        track_pitch(at_16k, RATE_HZ) if spoken.pitch is None else heard_pitch(at_16k, RATE_HZ, spoken.pitch[:frames])
    )
    arrays: Arrays = {
        "audio": np.clip(audio_24k, -1, 1) * PCM16_SCALE,
        "log_mel": s3_log_mel(at_16k).T,
        "mel": flow_mel_24k(audio_24k),
        "fbank": _padded(kaldi_fbank(at_16k), tokens * LOG_MEL_FRAMES_PER_TOKEN),
        "phones": heard_phones(spoken),
        "pitch": pitch,
        "phase": np.full(frames, -1.0) if spoken.phase is None else spoken.phase[:frames],
    }
    return {name: _checked(name, array, tokens) for name, array in arrays.items()}


def phones_at_frames(segments: tuple[Segment, ...], frames: int) -> npt.NDArray[np.uint8]:
    """Return the phone's class at the middle of every 20 ms."""
    ends = np.array([segment.end_s for segment in segments])
    numbers = np.array([phone_number(segment.phone) for segment in segments], np.uint8)
    middle = (np.arange(frames) + 0.5) * FRAME_SECONDS
    at: npt.NDArray[np.uint8] = numbers[np.minimum(np.searchsorted(ends, middle, side="right"), len(numbers) - 1)]
    return at


def heard_phones(spoken: Spoken) -> npt.NDArray[np.uint8]:
    """Return the phone's class at every 20 ms of the whole tokens; the pause where the audio is silent for longer.

    A teacher may say that a phone lasts into the silence behind it.
    """
    frames = whole_tokens(spoken) * FRAMES_PER_TOKEN
    phones = phones_at_frames(spoken.segments, frames)
    level = loudness(spoken.samples[: frames * round(spoken.rate_hz * FRAME_SECONDS)], spoken.rate_hz, FRAME_SECONDS)
    is_silent = level <= SILENT_SHARE * level.max(initial=0.0)
    edges = np.flatnonzero(np.diff(is_silent, prepend=False, append=False))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin >= SILENT_FRAMES:
            phones[begin:end] = phone_number(PAUSE)
    return phones


def _padded(energies: npt.NDArray[np.float32], frames: int) -> npt.NDArray[np.float32]:
    """Repeat the edges: the filter bank has no frame whose window would leave the audio."""
    missing = frames - len(energies)
    return np.pad(energies, ((missing // 2, missing - missing // 2), (0, 0)), mode="edge")


def _checked(name: str, array: npt.NDArray[np.generic], tokens: int) -> npt.NDArray[np.generic]:
    layout = LAYOUTS[name]
    assert len(array) == tokens * layout.per_token, (name, len(array), tokens)
    return np.ascontiguousarray(array.astype(layout.dtype))
