"""Measures of what no listener should hear: silence and clipping. Pure numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

FRAME_SECONDS = 0.01
SILENCE_LEVEL = 10 ** (-50 / 20)
"""-50 dB of full scale, as root mean square of 10 ms."""
CLIP_LEVEL = 0.985
"""Just under the vocoder's own limit of 0.99."""
CLIP_RUN = 3
"""Samples in a row at the limit that make a clip; a single peak is none."""


def silent_frames(samples: FloatArray, rate_hz: int) -> npt.NDArray[np.bool_]:
    """Return [frames] bool, true where 10 ms are under -50 dB."""
    return loudness(samples, rate_hz, FRAME_SECONDS) < SILENCE_LEVEL


def loudness(samples: FloatArray, rate_hz: int, frame_seconds: float) -> npt.NDArray[np.float64]:
    """Return the root mean square of each whole frame."""
    size = round(rate_hz * frame_seconds)
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    level: npt.NDArray[np.float64] = np.sqrt((frames**2).mean(axis=1))
    return level


def longest_run(flags: npt.NDArray[np.bool_]) -> int:
    """Return the length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def clipped_samples(samples: FloatArray) -> int:
    """Count samples in runs of three or more at the limit."""
    at_limit = np.abs(samples) >= CLIP_LEVEL
    edges = np.flatnonzero(np.diff(np.concatenate([[0], at_limit.astype(np.int8), [0]])))
    runs = edges[1::2] - edges[::2]
    return int(runs[runs >= CLIP_RUN].sum())
