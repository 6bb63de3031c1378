"""Counts and measures the engine's work: totals since its start, the newest steps, chunks that came too late.

Decides nothing. What was measured is kept until someone takes it, and bounded, so that nobody has to.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass

from servicekit.stream_limit import StreamLimit
from token2wav_service.contract import SAMPLE_RATE_HZ, ServerStatus
from token2wav_service.engine.stream import Punctuality, Stream
from token2wav_service.engine.voice_cache import VoiceCacheStats
from token2wav_service.types import ChunkTiming, ServingStats, StreamStatus

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


class EngineMeter:
    """Not thread-safe: the engine's lock guards it."""

    def __init__(self) -> None:
        self._queue_s: deque[float] = deque(maxlen=MAX_KEPT)
        self._step_s: deque[float] = deque(maxlen=MAX_KEPT)
        self._recent_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._histogram: Counter[int] = Counter()
        self._ends: Counter[StreamStatus] = Counter()
        self._chunks = self._samples = self._deadline_misses = 0

    def step(self, streams: int, seconds: float) -> None:
        """Note a step of so many streams."""
        self._histogram[streams] += 1
        self._step_s.append(seconds)
        self._recent_s.append(seconds)

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
            state_bytes=sum(stream.state.num_bytes for stream in streams if stream.making is None),
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

    def status(self, streams: Collection[Stream], limit: StreamLimit, hop_multiple: int) -> ServerStatus:
        """Return how busy the engine is now; never that it drains, which is its server's to know."""
        return ServerStatus(
            max_streams=limit.streams,
            open_streams=len(streams),
            steps=sum(self._histogram.values()),
            step_seconds=sum(self._recent_s) / len(self._recent_s) if self._recent_s else None,
            is_draining=False,
            hop_multiple=hop_multiple,
            next_end_s=limit.next_end_s(len(streams)),
        )
