"""Counts the engine's work since its start, and how busy it is now. Decides nothing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass

from servicekit.stream_limit import StreamLimit
from token2wav_service.contract import SAMPLE_RATE_HZ, ServerStatus
from token2wav_service.engine.meter import EngineMeter, Measurements, Punctuality
from token2wav_service.engine.stream import Stream
from token2wav_service.engine.voice_cache import VoiceCacheStats
from token2wav_service.types import ChunkTiming, ServingStats, StreamStatus


class StepCounters:
    """Not thread-safe: the engine's lock guards it."""

    def __init__(self) -> None:
        self._histogram: Counter[int] = Counter()
        self._recent_steps = RecentSteps()
        self._meter = EngineMeter()
        self._chunks = self._samples = 0
        self._ends: Counter[StreamStatus] = Counter()

    def step(self, streams: int, seconds: float, samples: int) -> None:
        """Note a step of so many streams that made so many samples."""
        self._histogram[streams] += 1
        self._meter.step(seconds)
        self._recent_steps.add(seconds, samples / SAMPLE_RATE_HZ)

    def chunk(self, timing: ChunkTiming) -> None:
        """Note a chunk whose step has run, with success or not."""
        self._meter.chunk(timing)

    def deliver(self, stream: Stream, timing: ChunkTiming, samples: int) -> Punctuality | None:
        """Note a chunk's audio and count it for its stream; returns how it kept its deadline."""
        kept = stream.deadline.deliver(timing.accepted_s, timing.ended_s, samples / SAMPLE_RATE_HZ)
        self._meter.deadline_misses += kept is not None and kept.is_late
        stream.last_activity_s = timing.ended_s
        if samples and stream.first_audio_s is None:
            stream.first_audio_s = timing.ended_s
        stream.samples += samples
        self._chunks += 1
        self._samples += samples
        return kept

    def end(self, status: StreamStatus) -> None:
        """Note a stream's end."""
        self._ends[status] += 1

    def take_measurements(self) -> Measurements:
        """See `EngineMeter.take`."""
        return self._meter.take()

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
            deadline_misses=self._meter.deadline_misses,
            voice_hits=cache.hits,
            voice_misses=cache.misses,
            voice_evictions=cache.evictions,
        )

    def status(
        self, streams: Collection[Stream], limit: StreamLimit, max_batch_size: int, hop_multiple: int
    ) -> ServerStatus:
        """Return how busy the engine is now; never that it drains, which is its server's to know."""
        return ServerStatus(
            max_streams=limit.streams,
            open_streams=len(streams),
            ready_streams=sum(stream.is_ready for stream in streams),
            max_batch_size=max_batch_size,
            steps=sum(self._histogram.values()),
            step_seconds=self._recent_steps.mean_s,
            audio_seconds_per_second=self._recent_steps.audio_s_per_s,
            is_draining=False,
            hop_multiple=hop_multiple,
            next_end_s=limit.next_end_s(len(streams)),
        )


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
