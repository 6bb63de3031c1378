"""Where in its cycle a teacher's voice is: the fundamental's phase, which the teacher's own excitation has.

Both neural teachers make their sound out of harmonics whose phase is the running sum of a pitch curve. Known at every
frame, it lets the vocoder be given the very excitation of the audio that it shall make.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.train.teachers.flite import FloatArray

Cycles = npt.NDArray[np.float64]


def cycles_at_samples(pitch: FloatArray, hop: int, rate_hz: int, least_hz: float) -> Cycles:
    """Sum up a pitch curve, sample by sample.

    Args:
        pitch: [F] Hz; value k is at the middle of frame k.
        hop: samples of a frame.
        rate_hz: sample rate.
        least_hz: lower pitches count as this one.

    Returns:
        [hop F] cycles from the beginning to the end of each sample.
    """
    at = (np.arange(len(pitch) * hop) + 0.5) / hop - 0.5
    curve = np.interp(at, np.arange(len(pitch)), pitch.astype(np.float64))
    cycles: Cycles = np.cumsum(np.maximum(curve, least_hz)) / rate_hz
    return cycles


def phase_at_frames(cycles: Cycles, step: float, frames: int) -> FloatArray:
    """Read running cycles at the middle of every 20 ms.

    Args:
        cycles: [N], in steps of time.
        step: how many of them 20 ms are.
        frames: of the answer.

    Returns:
        [frames] float32 phase in cycles, 0 to 1.
    """
    at = (np.arange(frames) + 0.5) * step - 0.5
    phase: FloatArray = (np.interp(at, np.arange(len(cycles)), cycles) % 1).astype(np.float32)
    return phase
