"""How much audio one caller was given within the last hour and day. Pure; time is passed in.

Counts by the minute, so a day takes 1441 numbers at most; a minute counts until its last second has left the window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
_SLICE_S = 60.0


@dataclass
class _Slice:
    ends_s: float
    audio_s: float


class AudioUsage:
    """Seconds of audio by the minute, the last day's."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._slices: deque[_Slice] = deque()

    def add(self, audio_s: float, now_s: float) -> None:
        """Count audio; `now_s` never goes back."""
        self._forget(now_s)
        if not self._slices or self._slices[-1].ends_s <= now_s:
            self._slices.append(_Slice((now_s // _SLICE_S + 1) * _SLICE_S, 0.0))
        self._slices[-1].audio_s += audio_s

    def within(self, window_s: float, now_s: float) -> float:
        """Return the seconds of audio given in the last `window_s`, a day at most."""
        return sum(each.audio_s for each in self._slices if each.ends_s > now_s - window_s)

    def wait_s(self, limit_s: float, window_s: float, now_s: float) -> float:
        """Return how long it takes until less than `limit_s` of audio lies within the window; 0 if that is so now."""
        left_s = self.within(window_s, now_s)
        if left_s < limit_s:
            return 0.0
        wait_s = 0.0
        for each in self._slices:
            if left_s < limit_s:
                break
            if each.ends_s > now_s - window_s:
                left_s -= each.audio_s
                wait_s = each.ends_s + window_s - now_s
        return wait_s

    def _forget(self, now_s: float) -> None:
        while self._slices and self._slices[0].ends_s <= now_s - DAY_S:
            self._slices.popleft()
