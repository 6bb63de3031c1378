"""Continuity where chunks meet: jumps of pitch and loudness at the seams against those everywhere else. Pure numpy.

A stream that is cut well changes no more at its seams than between any two neighbouring frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.ears.audio_faults import loudness
from lab.ears.pitch import FRAME_SECONDS, track_pitch

FloatArray = npt.NDArray[np.float32]

REACH_FRAMES = 4
"""80 ms on both sides of a seam belong to it: half of what consecutive vocoder calls share."""
AUDIBLE_DB = -50.0
"""Quieter frames, relative to full scale, have no loudness worth comparing."""
_SEMITONES = 12.0
_TINY = 1e-5


@dataclass(frozen=True)
class SeamJumps:
    """Mean size of the change from one 20 ms frame to the next."""

    pitch_at_seams: float
    """Semitones; NaN where no seam lies in voiced speech."""
    pitch_elsewhere: float
    loudness_at_seams: float
    """Decibels; NaN where no seam lies in audible speech."""
    loudness_elsewhere: float

    @property
    def pitch_ratio(self) -> float:
        """1 when seams are like everything else."""
        return self.pitch_at_seams / self.pitch_elsewhere


def seam_jumps(samples: FloatArray, rate_hz: int, seam_samples: Sequence[int]) -> SeamJumps:
    """Compare the changes near the seams with all others.

    Args:
        samples: [N] mono float32 in +-1.
        rate_hz: their sample rate.
        seam_samples: where one delivered piece ends and the next begins.
    """
    pitch = track_pitch(samples, rate_hz)
    level_db = 20 * np.log10(loudness(samples, rate_hz, FRAME_SECONDS) + _TINY)[: len(pitch)]
    near = _near(seam_samples, rate_hz, len(pitch))
    is_voiced = (pitch[1:] > 0) & (pitch[:-1] > 0)
    semitones = np.abs(np.diff(_SEMITONES * np.log2(np.maximum(pitch, 1.0))))
    is_audible = (level_db[1:] > AUDIBLE_DB) & (level_db[:-1] > AUDIBLE_DB)
    decibels = np.abs(np.diff(level_db))
    return SeamJumps(
        _mean(semitones[is_voiced & near]),
        _mean(semitones[is_voiced & ~near]),
        _mean(decibels[is_audible & near]),
        _mean(decibels[is_audible & ~near]),
    )


def contour_distance(first: FloatArray, second: FloatArray, rate_hz: int) -> tuple[float, float]:
    """Compare two renderings of the same tokens: streamed and offline, say.

    Returns:
        Mean absolute difference of pitch in semitones over frames that both voice, and of loudness in decibels over
        frames that both make audible; NaN where there are none.
    """
    pitches = [track_pitch(samples, rate_hz) for samples in (first, second)]
    levels = [20 * np.log10(loudness(samples, rate_hz, FRAME_SECONDS) + _TINY) for samples in (first, second)]
    count = min(map(len, [*pitches, *levels]))
    a, b = (pitch[:count] for pitch in pitches)
    both = (a > 0) & (b > 0)
    semitones = _SEMITONES * np.abs(np.log2(a[both] / b[both]))
    x, y = (level[:count] for level in levels)
    audible = (x > AUDIBLE_DB) & (y > AUDIBLE_DB)
    return _mean(semitones), _mean(np.abs(x - y)[audible])


def _near(seams: Sequence[int], rate_hz: int, frames: int) -> npt.NDArray[np.bool_]:
    """[frames - 1] bool: the change from frame j to j + 1 lies within reach of a seam."""
    middle = np.arange(1, frames) * FRAME_SECONDS * rate_hz
    near = np.zeros(max(frames - 1, 0), dtype=bool)
    for seam in seams:
        near |= np.abs(middle - seam) <= REACH_FRAMES * FRAME_SECONDS * rate_hz
    return near


def _mean(values: npt.NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else float("nan")
