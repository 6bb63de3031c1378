"""When a listener hears the first sound, as the public harness `tts_bench` defines it.

Audible is the first of two consecutive frames (20 ms, one every 10 ms, mean removed) of -45 dBFS or more. Playback
begins at the first sample, and stalls where audio comes late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cosydit.bench.types import AudioArrival

FRAME_S, HOP_S = 0.02, 0.01
LEAST_DBFS = -45.0


class LeadingSilence:
    """Finds the first audible sample of one answer while it comes."""

    def __init__(self, rate_hz: int) -> None:
        """Hear nothing yet."""
        self._rate_hz = rate_hz
        self._frame, self._hop = round(FRAME_S * rate_hz), round(HOP_S * rate_hz)
        self._rest: npt.NDArray[np.float32] = np.zeros(0, np.float32)
        self._begin = 0
        self._was_loud = False
        self.seconds: float | None = None
        """Seconds of silence before the first sound; None: no sound yet."""

    def feed(self, samples: npt.NDArray[np.float32]) -> None:
        """Take the next samples, [N] in -1..1."""
        if self.seconds is not None:
            return
        self._rest = np.concatenate([self._rest, samples])
        while len(self._rest) >= self._frame:
            is_loud = _dbfs(self._rest[: self._frame]) >= LEAST_DBFS
            if is_loud and self._was_loud:
                self.seconds = (self._begin - self._hop) / self._rate_hz
                return
            self._was_loud = is_loud
            self._begin += self._hop
            self._rest = self._rest[self._hop :]


def heard_at_s(arrivals: Sequence[AudioArrival], silence_s: float) -> float:
    """Return when the sample behind so much silence is played, in the arrivals' time.

    Raises:
        ValueError: there is no more audio than silence.
    """
    plays_s, offset_s = 0.0, 0.0
    for arrival in arrivals:
        plays_s = max(plays_s, arrival.at_s)
        if offset_s + arrival.audio_s > silence_s:
            return plays_s + silence_s - offset_s
        plays_s += arrival.audio_s
        offset_s += arrival.audio_s
    raise ValueError(f"got {offset_s:.3f} s of audio, expected more than the {silence_s:.3f} s of silence")


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least so many percent of all are not above.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("got no values, expected at least one")
    ordered = sorted(values)
    return ordered[max(0, int(np.ceil(percent / 100 * len(ordered))) - 1)]


def _dbfs(frame: npt.NDArray[np.float32]) -> float:
    """Return the level of a frame; its mean counts for nothing."""
    power = float(np.mean(np.square(frame - frame.mean(), dtype=np.float64)))
    return 10.0 * float(np.log10(max(power, 1e-20)))
