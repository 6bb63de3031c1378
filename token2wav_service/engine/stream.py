"""One utterance being synthesised: its state, its waiting chunks, its books."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from token2wav_service.engine.meter import PlaybackDeadline
from token2wav_service.engine.runner import StreamState
from token2wav_service.engine.voices import Voice
from token2wav_service.types import StreamOptions, StreamStatus, StreamSummary, TokenChunk

FIRST_AUDIO_DUE_S = 0.3
"""From a stream's opening. A listener who waits so long hears no fault; one who has begun to listen hears every gap.

Measured at 32 requests a second on one H200: 68 of 1,152 listeners heard gaps where newcomers always went first
(`benchmarks/results/h200_end_to_end`), none of 1,056 with this (`h200_capacity`).
"""


@dataclass
class Stream:
    """An open stream; owned by the engine, changed under its lock only."""

    stream_id: str
    voice: Voice
    options: StreamOptions
    state: StreamState
    opened_s: float
    last_activity_s: float
    status: StreamStatus = StreamStatus.WAITING
    waiting: deque[TokenChunk] = field(default_factory=deque)
    """Accepted chunks that have not run, oldest first."""
    in_step: bool = False
    """True while a step runs the first waiting chunk."""
    next_index: int = 0
    lookahead: tuple[int, ...] = ()
    """The newest accepted chunk's look-ahead tokens."""
    planned_frames: int = 0
    """Mel frames after all accepted chunks, prompt included."""
    has_last: bool = False
    """True once the last chunk was accepted."""
    schedule: list[int] = field(default_factory=list)
    accepted_s: deque[float] = field(default_factory=deque)
    """When each waiting chunk was accepted."""
    deadline: PlaybackDeadline = field(default_factory=PlaybackDeadline)
    samples: int = 0
    first_audio_s: float | None = None

    @property
    def is_ready(self) -> bool:
        """True when a chunk can run now."""
        return bool(self.waiting) and not self.in_step

    @property
    def due_s(self) -> float:
        """Clock time when a listener who plays from the first audio on has nothing left to play.

        Of a stream that has not been heard yet: when its first audio is due.
        """
        dry_s = self.deadline.dry_s
        if dry_s is None:
            return self.opened_s + FIRST_AUDIO_DUE_S
        # A listener who ran dry before the chunk came has waited for the caller: that earns no place before others.
        return max(dry_s, self.accepted_s[0]) if self.accepted_s else dry_s

    def summary(self) -> StreamSummary:
        """Return what became of the stream so far."""
        return StreamSummary(
            self.stream_id,
            self.voice.features.voice_id,
            self.options.seed,
            self.status,
            list(self.schedule),
            self.samples,
        )
