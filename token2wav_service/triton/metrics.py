"""Publishes the engine's counters as Prometheus metrics through Triton (`cosydit_token2wav_*` on its metrics port).

Knows metric names and how to turn totals into increments; computes nothing itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from token2wav_service.triton.responder import PbUtils

logger = logging.getLogger(__name__)

PREFIX = "cosydit_token2wav"
BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class StatsLike(Protocol):
    """A snapshot of the engine's counters; totals only grow."""

    @property
    def open_streams(self) -> int: ...
    @property
    def voices(self) -> int: ...
    @property
    def voice_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def batch_size_histogram(self) -> Mapping[int, int]:
        """Streams in a step -> number of such steps."""
        ...

    @property
    def chunks(self) -> int: ...
    @property
    def audio_seconds(self) -> float: ...
    @property
    def aborted(self) -> int: ...
    @property
    def finished(self) -> int: ...


class EngineMetrics:
    """Copies `stats()` into Triton's registry every `interval_s`, from a thread of its own."""

    def __init__(self, pb_utils: PbUtils, stats: Callable[[], StatsLike], interval_s: float) -> None:
        self._stats = stats
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        gauge, counter = pb_utils.MetricFamily.GAUGE, pb_utils.MetricFamily.COUNTER
        self._families: list[Any] = []  # NOTE: Triton drops a metric whose family was garbage-collected.
        self._gauges = {name: self._metric(pb_utils, name, text, gauge) for name, text in _GAUGES.items()}
        self._counters = {name: self._metric(pb_utils, name, text, counter) for name, text in _COUNTERS.items()}
        self._batch_sizes = self._metric(
            pb_utils,
            "step_batch_size",
            "Streams advanced together in one step",
            pb_utils.MetricFamily.HISTOGRAM,
            buckets=list(BATCH_SIZE_BUCKETS),
        )
        self._published: dict[str, float] = {}
        self._published_sizes: dict[int, int] = {}

    def start(self) -> None:
        """Begin publishing."""
        self._thread.start()

    def stop(self) -> None:
        """Publish once more, so that the last values are final, and end the thread."""
        self._stopping.set()
        self._thread.join()

    def refresh(self) -> None:
        """Publish the current values once; only what changed crosses to the server."""
        stats = self._stats()
        for name, read in _READERS.items():
            self._publish(name, float(read(stats)))
        for size, total in stats.batch_size_histogram.items():
            for _ in range(total - self._published_sizes.get(size, 0)):
                self._batch_sizes.observe(float(size))
            self._published_sizes[size] = total

    def _metric(self, pb_utils: PbUtils, name: str, description: str, kind: Any, **options: Any) -> Any:
        family = pb_utils.MetricFamily(name=f"{PREFIX}_{name}", description=description, kind=kind)
        self._families.append(family)
        return family.Metric(labels={}, **options)

    def _publish(self, name: str, value: float) -> None:
        before = self._published.get(name)
        if before == value:
            return
        if name in self._gauges:
            self._gauges[name].set(value)
        else:
            self._counters[name].increment(value - (before or 0.0))
        self._published[name] = value

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            is_stopping = self._stopping.wait(self._interval_s)
            try:
                self.refresh()
            except Exception:
                # NOTE: a metric that can't be written must not end the ones that can.
                logger.exception("could not publish the engine's metrics")


_GAUGES = {
    "open_streams": "Streams open now",
    "voices": "Voices cached now",
    "voice_bytes": "Memory of the cached voices in bytes",
    "state_bytes": "Memory of the open streams' states in bytes",
}
_COUNTERS = {
    "steps_total": "Batched steps run",
    "chunks_total": "Audio chunks made",
    "audio_seconds_total": "Seconds of audio made",
    "aborted_total": "Streams that ended before their last chunk",
    "finished_total": "Streams that delivered their last chunk",
}
_READERS: Mapping[str, Callable[[StatsLike], float]] = {
    "open_streams": lambda stats: stats.open_streams,
    "voices": lambda stats: stats.voices,
    "voice_bytes": lambda stats: stats.voice_bytes,
    "state_bytes": lambda stats: stats.state_bytes,
    "steps_total": lambda stats: stats.steps,
    "chunks_total": lambda stats: stats.chunks,
    "audio_seconds_total": lambda stats: stats.audio_seconds,
    "aborted_total": lambda stats: stats.aborted,
    "finished_total": lambda stats: stats.finished,
}
