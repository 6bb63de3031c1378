"""What the engine measures of chunks: how long they waited, how long their steps took, which came too late.

Kept until someone takes it, and bounded, so that nobody has to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from token2wav_service.types import ChunkTiming

MAX_KEPT = 4096
"""Measurements of each kind that nobody has taken yet; far more than a quarter of a second brings."""


@dataclass(frozen=True)
class Measurements:
    """What happened since they were taken last."""

    queue_s: tuple[float, ...] = ()
    """Seconds that each chunk waited for its step."""
    step_s: tuple[float, ...] = ()
    """Seconds that each step took."""


class EngineMeter:
    """Not thread-safe: the engine's lock guards it."""

    def __init__(self) -> None:
        self._queue_s: deque[float] = deque(maxlen=MAX_KEPT)
        self._step_s: deque[float] = deque(maxlen=MAX_KEPT)
        self.deadline_misses = 0

    def step(self, seconds: float) -> None:
        """Note a step."""
        self._step_s.append(seconds)

    def chunk(self, timing: ChunkTiming) -> None:
        """Note a chunk whose step has run."""
        self._queue_s.append(timing.queue_s)

    def take(self) -> Measurements:
        """Return what was noted since the last time, and forget it."""
        taken = Measurements(tuple(self._queue_s), tuple(self._step_s))
        self._queue_s.clear()
        self._step_s.clear()
        return taken


class PlaybackDeadline:
    """When the listener of one stream has nothing left to play; after a silence it plays on from what ended it."""

    def __init__(self) -> None:
        self._dry_s: float | None = None

    @property
    def dry_s(self) -> float | None:
        """Clock time when nothing is left to play; None before the first audio."""
        return self._dry_s

    def deliver(self, accepted_s: float, now_s: float, audio_s: float) -> bool:
        """Note a chunk's audio; returns whether the engine was late.

        It was if the listener still had audio when the chunk was accepted and has none now. A chunk that came when the
        listener had run dry already, because the LLM or its text was slow, has no deadline that could be kept.
        """
        if audio_s <= 0:
            return False
        is_late = self._dry_s is not None and accepted_s <= self._dry_s < now_s
        self._dry_s = now_s + audio_s if self._dry_s is None else max(self._dry_s, now_s) + audio_s
        return is_late
