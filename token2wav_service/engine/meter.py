"""Counts and measures the engine's work: totals since its start, the newest steps, chunks that came too late.

Decides nothing. What was measured is kept until someone takes it, and bounded, so that nobody has to.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servicekit.stream_limit import FIRST_ROOM_S, StreamLimit
from token2wav_service.contract import SAMPLE_RATE_HZ, ServerStatus
from token2wav_service.engine.voice_cache import VoiceCacheStats
from token2wav_service.types import ChunkTiming, ServingStats, StreamStatus

if TYPE_CHECKING:
    from token2wav_service.engine.stream import Stream

MAX_KEPT = 4096
"""Measurements of each kind that nobody has taken yet; far more than a quarter of a second brings."""
REMEMBERED_STEPS = 32
"""Some seconds of work under load: enough for a steady mean, few enough to follow the load."""


@dataclass(frozen=True)
class Measurements:
    """What happened since they were taken last."""

    queue_s: tuple[float, ...] = ()
    """Seconds that each chunk waited for its step."""
    step_s: tuple[float, ...] = ()
    """Seconds that each step took."""


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
        self.dry_s: float | None = None
        """Clock time when nothing is left to play; None before the first audio."""

    def deliver(self, accepted_s: float, now_s: float, audio_s: float) -> Punctuality | None:
        """Note a chunk's audio; returns how much time the engine had for it and left, None if there is no audio."""
        if audio_s <= 0:
            return None
        due_s = accepted_s + FIRST_ROOM_S if self.dry_s is None else self.dry_s
        is_late = self.dry_s is not None and accepted_s <= self.dry_s < now_s
        self.dry_s = now_s + audio_s if self.dry_s is None else max(self.dry_s, now_s) + audio_s
        return Punctuality(due_s - now_s, due_s - accepted_s, is_late)


class EngineMeter:
    """Not thread-safe: the engine's lock guards it."""

    def __init__(self) -> None:
        self._queue_s: deque[float] = deque(maxlen=MAX_KEPT)
        self._step_s: deque[float] = deque(maxlen=MAX_KEPT)
        self._recent: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_STEPS)
        """Seconds that each step took, and seconds of audio that it made."""
        self._histogram: Counter[int] = Counter()
        self._ends: Counter[StreamStatus] = Counter()
        self._chunks = self._samples = self._deadline_misses = 0

    def step(self, streams: int, seconds: float, samples: int) -> None:
        """Note a step of so many streams that made so many samples."""
        self._histogram[streams] += 1
        self._step_s.append(seconds)
        self._recent.append((seconds, samples / SAMPLE_RATE_HZ))

    def chunk(self, timing: ChunkTiming) -> None:
        """Note a chunk whose step has run, with success or not."""
        self._queue_s.append(timing.queue_s)

    def deliver(self, stream: Stream, timing: ChunkTiming, samples: int) -> Punctuality | None:
        """Note a chunk's audio and count it for its stream; returns how it kept its deadline."""
        kept = stream.deadline.deliver(timing.accepted_s, timing.ended_s, samples / SAMPLE_RATE_HZ)
        self._deadline_misses += kept is not None and kept.is_late
        stream.last_activity_s = timing.ended_s
        stream.samples += samples
        self._chunks += 1
        self._samples += samples
        return kept

    def end(self, status: StreamStatus) -> None:
        """Note a stream's end."""
        self._ends[status] += 1

    def take(self) -> Measurements:
        """Return what was measured since the last time, and forget it."""
        taken = Measurements(tuple(self._queue_s), tuple(self._step_s))
        self._queue_s.clear()
        self._step_s.clear()
        return taken

    def stats(self, streams: Collection[Stream], slots: int, cache: VoiceCacheStats) -> ServingStats:
        """Return the counters as they are now."""
        return ServingStats(
            open_streams=len(streams),
            voices=cache.voices,
            voice_bytes=cache.used_bytes,
            state_bytes=sum(stream.state.num_bytes for stream in streams),
            steps=sum(self._histogram.values()),
            batch_size_histogram=dict(self._histogram),
            chunks=self._chunks,
            audio_seconds=self._samples / SAMPLE_RATE_HZ,
            finished=self._ends[StreamStatus.FINISHED],
            aborted=self._ends[StreamStatus.ABORTED],
            slots=slots,
            queued_chunks=sum(len(stream.waiting) - stream.in_step for stream in streams),
            deadline_misses=self._deadline_misses,
            voice_hits=cache.hits,
            voice_misses=cache.misses,
            voice_evictions=cache.evictions,
        )

    def status(
        self, streams: Collection[Stream], limit: StreamLimit, max_batch_size: int, hop_multiple: int
    ) -> ServerStatus:
        """Return how busy the engine is now; never that it drains, which is its server's to know."""
        seconds, audio_s = (sum(step[part] for step in self._recent) for part in range(2))
        return ServerStatus(
            max_streams=limit.streams,
            open_streams=len(streams),
            ready_streams=sum(stream.is_ready for stream in streams),
            max_batch_size=max_batch_size,
            steps=sum(self._histogram.values()),
            step_seconds=seconds / len(self._recent) if self._recent else None,
            audio_seconds_per_second=audio_s / seconds if seconds else None,
            is_draining=False,
            hop_multiple=hop_multiple,
            next_end_s=limit.next_end_s(len(streams)),
        )
