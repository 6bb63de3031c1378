"""Pitch of clean speech by normalised autocorrelation. Pure numpy; good enough for synthetic and studio voices.

It knows nothing of models. The vocoder's training and the measures of chunk seams share it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

FRAME_SECONDS = 0.02
"""One estimate a mel frame (50 Hz); frame j is centred at (j + 0.5) * 20 ms, as the flow's mel is."""
LOW_HZ, HIGH_HZ = 60.0, 420.0
WINDOW_SECONDS = 0.045
"""A little under three periods of the lowest voice."""
VOICED_CORRELATION = 0.55
"""Least correlation of a voiced window; below it the best lag explains too little."""
KNOWN_CORRELATION = 0.35
"""The same at a lag that is known: no other lag can be mistaken for it."""
SILENCE_DB = -45.0
"""Relative to the loudest frame; quieter frames are unvoiced."""
_OCTAVE_COST = 0.02
"""Cost for each octave of lag, so that a period wins over its double."""
_MEDIAN_FRAMES = 5
_TINY = 1e-9


def track_pitch(samples: FloatArray, rate_hz: int) -> FloatArray:
    """Estimate the pitch of every 20 ms.

    Args:
        samples: [N] mono float32 in +-1.
        rate_hz: their sample rate.

    Returns:
        [N // (rate / 50)] float32 Hz; 0 where unvoiced.
    """
    hop = round(rate_hz * FRAME_SECONDS)
    count = len(samples) // hop
    if not count:
        return np.zeros(0, np.float32)
    windows = _windows(samples, count, hop, round(rate_hz * WINDOW_SECONDS))
    low, high = int(rate_hz / HIGH_HZ), int(rate_hz / LOW_HZ)
    correlation = _normalised_autocorrelation(windows, high + 2)
    lags = np.arange(low, high + 1)
    scores = correlation[:, low : high + 1] - _OCTAVE_COST * np.log2(lags / low)
    best = low + scores.argmax(axis=1)
    strength = correlation[np.arange(count), best]
    pitch = rate_hz / _refined(correlation, best)
    is_voiced = (strength > VOICED_CORRELATION) & (_level_db(windows) > SILENCE_DB)
    return _median_smoothed(np.where(is_voiced, pitch, 0.0)).astype(np.float32)


def heard_pitch(samples: FloatArray, rate_hz: int, pitch: FloatArray) -> FloatArray:
    """Return a known pitch where the audio repeats itself at it, and 0 elsewhere.

    Args:
        samples: [N] mono float32 in +-1.
        rate_hz: their sample rate.
        pitch: [N // (rate / 50)] float32 Hz, which somebody says the audio has; 0 where unvoiced.
    """
    if not len(pitch):
        return pitch
    hop = round(rate_hz * FRAME_SECONDS)
    windows = _windows(samples, len(pitch), hop, round(rate_hz * WINDOW_SECONDS))
    high = int(rate_hz / LOW_HZ)
    correlation = _normalised_autocorrelation(windows, high + 2)
    lags = np.clip(np.rint(rate_hz / np.maximum(pitch, LOW_HZ)).astype(np.int64), 1, high)
    strength = np.max([correlation[np.arange(len(pitch)), lags + step] for step in (-1, 0, 1)], axis=0)
    is_heard = (strength > KNOWN_CORRELATION) & (_level_db(windows) > SILENCE_DB)
    return np.where(is_heard, pitch, 0.0).astype(np.float32)


def _windows(samples: FloatArray, count: int, hop: int, size: int) -> npt.NDArray[np.float64]:
    left = max(0, size // 2 - hop // 2)
    padded = np.pad(samples.astype(np.float64), (left, size))
    frames: npt.NDArray[np.float64] = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][:count].copy()
    frames -= frames.mean(axis=1, keepdims=True)
    return frames


def _normalised_autocorrelation(windows: npt.NDArray[np.float64], lags: int) -> npt.NDArray[np.float64]:
    """Return [frames, lags]: correlation of the window's beginning with its end, by lag, within +-1."""
    size = windows.shape[1]
    spectrum = np.fft.rfft(windows, 2 * size)
    products = np.fft.irfft(np.abs(spectrum) ** 2, 2 * size)[:, :lags]
    power = np.concatenate([np.zeros((len(windows), 1)), np.cumsum(windows**2, axis=1)], axis=1)
    index = np.arange(lags)
    head = power[:, size - index]
    tail = power[:, -1:] - power[:, index]
    correlation: npt.NDArray[np.float64] = products / (np.sqrt(head * tail) + _TINY)
    return correlation


def _refined(correlation: npt.NDArray[np.float64], best: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Move each lag to the top of the parabola through its neighbours."""
    rows = np.arange(len(best))
    before, at, after = (correlation[rows, best + step] for step in (-1, 0, 1))
    curvature = before - 2 * at + after
    shift = np.where(np.abs(curvature) > _TINY, 0.5 * (before - after) / np.where(curvature == 0, 1, curvature), 0.0)
    refined: npt.NDArray[np.float64] = best + np.clip(shift, -0.5, 0.5)
    return refined


def _level_db(windows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    level = np.sqrt((windows**2).mean(axis=1)) + _TINY
    decibels: npt.NDArray[np.float64] = 20 * np.log10(level / level.max())
    return decibels


def _median_smoothed(pitch: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Median over 5 frames: removes single octave slips and single stray decisions."""
    reach = _MEDIAN_FRAMES // 2
    padded = np.pad(pitch, reach, mode="edge")
    smoothed: npt.NDArray[np.float64] = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_FRAMES), 1)
    return smoothed
