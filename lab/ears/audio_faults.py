"""Detectors of what no listener should hear: long silence, clipping, clicks. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosydit.certify.recognition import FloatArray

FRAME_SECONDS = 0.01
SILENCE_LEVEL = 10 ** (-50 / 20)
"""-50 dB of full scale, as root mean square of 10 ms."""
CLIP_LEVEL = 0.985
"""Just under the vocoder's own limit of 0.99."""
CLIP_RUN = 3
"""Samples in a row at the limit that make a clip; a single peak is none."""
CLICK_RATIO = 12.0
"""A jump so many times the usual second difference around it."""
CLICK_FLOOR = 0.02
"""Smaller jumps are inaudible, whatever the ratio."""
_CLICK_WINDOW_SECONDS = 0.01
_LOUD_QUANTILE = 0.98
"""Quantile of the second difference in a window: glottal pulses are sharp and regular, a click stands alone."""


@dataclass(frozen=True)
class AudioFaults:
    """What is wrong with one utterance."""

    silent_share: float
    """Share of 10 ms frames under -50 dB."""
    longest_silence_s: float
    clipped_samples: int
    clicks: int


def find_faults(samples: FloatArray, rate_hz: int) -> AudioFaults:
    """Run every detector over [N] mono float32 in +-1."""
    silent = silent_frames(samples, rate_hz)
    share = float(silent.mean()) if len(silent) else 1.0
    return AudioFaults(
        share, longest_run(silent) * FRAME_SECONDS, clipped_samples(samples), len(clicks(samples, rate_hz))
    )


def loudness(samples: FloatArray, rate_hz: int, frame_seconds: float) -> npt.NDArray[np.float64]:
    """Return the root mean square of each whole frame."""
    size = round(rate_hz * frame_seconds)
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    level: npt.NDArray[np.float64] = np.sqrt((frames**2).mean(axis=1))
    return level


def silent_frames(samples: FloatArray, rate_hz: int) -> npt.NDArray[np.bool_]:
    """Return [frames] bool, true where 10 ms are under -50 dB."""
    return loudness(samples, rate_hz, FRAME_SECONDS) < SILENCE_LEVEL


def longest_run(flags: npt.NDArray[np.bool_]) -> int:
    """Return the length of the longest run of true values."""
    return int(_runs(flags).max(initial=0))


def clipped_samples(samples: FloatArray) -> int:
    """Count samples in runs of three or more at the limit."""
    runs = _runs(np.abs(samples) >= CLIP_LEVEL)
    return int(runs[runs >= CLIP_RUN].sum())


def _runs(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the lengths of the runs of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    lengths: npt.NDArray[np.int64] = edges[1::2] - edges[::2]
    return lengths


def clicks(samples: FloatArray, rate_hz: int) -> npt.NDArray[np.int64]:
    """Return the positions (samples) of isolated jumps, at most one in 10 ms.

    A jump is a second difference far above what its neighbourhood usually has: the 98 % quantile of the 10 ms
    around it, without the 0.5 ms at its own place.
    """
    size = round(rate_hz * _CLICK_WINDOW_SECONDS)
    if len(samples) < 3 * size:
        return np.zeros(0, np.int64)
    bend = np.abs(np.diff(samples.astype(np.float64), 2))
    frames = bend[: len(bend) // size * size].reshape(-1, size)
    usual = np.quantile(frames, _LOUD_QUANTILE, axis=1)
    around = np.maximum(np.roll(usual, 1), np.roll(usual, -1))
    around[0], around[-1] = usual[min(1, len(usual) - 1)], usual[max(0, len(usual) - 2)]
    peaks = frames.max(axis=1)
    found = np.flatnonzero((peaks > CLICK_RATIO * np.maximum(around, usual)) & (peaks > CLICK_FLOOR))
    return np.asarray(found * size + frames[found].argmax(axis=1) + 1, np.int64)
