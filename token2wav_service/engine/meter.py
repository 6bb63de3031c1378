"""What the engine measures of chunks: how long they waited, how long their steps took, which came too late.

Kept until someone takes it, and bounded, so that nobody has to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from servicekit.stream_limit import FIRST_ROOM_S
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


@dataclass(frozen=True)
class Punctuality:
    """How a chunk kept its listener's deadline."""

    slack_s: float
    """Seconds until the listener had nothing left when the audio came; negative: it had run dry."""
    room_s: float
    """What that was when the chunk was accepted; of a stream's first audio, a fixed time."""
    is_late: bool
    """Whether the listener still had audio when the chunk was accepted and had none when its audio came. A chunk that
    came when the listener had run dry already, because the LLM was slow, has no deadline that could be kept."""


class PlaybackDeadline:
    """When the listener of one stream has nothing left to play; after a silence it plays on from what ended it."""

    def __init__(self) -> None:
        self._dry_s: float | None = None

    @property
    def dry_s(self) -> float | None:
        """Clock time when nothing is left to play; None before the first audio."""
        return self._dry_s

    def deliver(self, accepted_s: float, now_s: float, audio_s: float) -> Punctuality | None:
        """Note a chunk's audio; returns how much time the engine had for it and left, None if there is no audio."""
        if audio_s <= 0:
            return None
        due_s = accepted_s + FIRST_ROOM_S if self._dry_s is None else self._dry_s
        is_late = self._dry_s is not None and accepted_s <= self._dry_s < now_s
        self._dry_s = now_s + audio_s if self._dry_s is None else max(self._dry_s, now_s) + audio_s
        return Punctuality(due_s - now_s, due_s - accepted_s, is_late)
