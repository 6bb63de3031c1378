"""How long the newest steps took and how much audio they made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

REMEMBERED_STEPS = 32
"""Some seconds of work under load: enough for a steady mean, few enough to follow the load."""


@dataclass(frozen=True)
class _Step:
    seconds: float
    audio_s: float


class RecentSteps:
    """The newest steps of one engine; its owner serialises access."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=REMEMBERED_STEPS)

    def add(self, seconds: float, audio_s: float) -> None:
        """Note a step that took `seconds` and made `audio_s` seconds of audio."""
        self._steps.append(_Step(seconds, audio_s))

    @property
    def mean_s(self) -> float | None:
        """Mean duration in seconds; None before the first step."""
        return sum(step.seconds for step in self._steps) / len(self._steps) if self._steps else None

    @property
    def audio_s_per_s(self) -> float | None:
        """Seconds of audio made in each second of steps; None before the first step."""
        seconds = sum(step.seconds for step in self._steps)
        return sum(step.audio_s for step in self._steps) / seconds if seconds else None
