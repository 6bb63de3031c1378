"""Publishes the engine's counters as Prometheus metrics through Triton (`cosydit_token2wav_*` on its metrics port).

Knows metric names and how to turn totals into increments; computes nothing itself.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from token2wav_service.contract import ErrorCode
from token2wav_service.engine.voices import STOP_TIMEOUT_S
from token2wav_service.python_backend.responder import PbUtils
from token2wav_service.types import ServingStats

if TYPE_CHECKING:
    from token2wav_service.engine.loop import ServingLoop

logger = logging.getLogger(__name__)

PREFIX = "cosydit_token2wav"
BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
QUEUE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class EngineMetrics:
    """Copies an engine's counters into Triton's registry every `interval_s`, from a thread of its own."""

    def __init__(self, pb_utils: PbUtils, engine: ServingLoop, interval_s: float) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._pb_utils = pb_utils
        self._families: list[Any] = []  # NOTE: Triton drops a metric whose family was garbage-collected.
        kinds = pb_utils.MetricFamily
        self._gauges = {name: self._metric(name, text, kinds.GAUGE) for name, text in _GAUGES.items()}
        self._counters = {name: self._metric(name, text, kinds.COUNTER) for name, text in _COUNTERS.items()}
        self._histograms = {
            name: self._metric(name, text, kinds.HISTOGRAM, buckets=list(buckets))
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        failures = self._family("failures_total", "Errors sent, by cause", kinds.COUNTER)
        self._counters |= {code: failures.Metric(labels={"cause": code.value.lower()}) for code in ErrorCode}
        self._failures = dict.fromkeys(ErrorCode, 0)
        self._lock = threading.Lock()
        self._published: dict[str, float] = {}
        self._published_sizes: dict[int, int] = {}

    def start(self) -> None:
        """Begin publishing."""
        self._thread.start()

    def stop(self) -> None:
        """Publish once more, so that the last values are final, and end the thread."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def count_failure(self, code: ErrorCode) -> None:
        """Count an error that was sent; thread-safe."""
        with self._lock:
            self._failures[code] += 1

    def refresh(self) -> None:
        """Publish the current values once; only what changed crosses to the server."""
        stats = self._engine.stats()
        for name in (*_GAUGES, *_COUNTERS):
            self._publish(name, _value(stats, name))
        for code, total in self._failures.items():
            self._publish(code, float(total))
        for size, total in stats.batch_size_histogram.items():
            for _ in range(total - self._published_sizes.get(size, 0)):
                self._histograms["step_batch_size"].observe(float(size))
            self._published_sizes[size] = total
        measured = self._engine.take_measurements()
        for name, values in (("queue_seconds", measured.queue_s), ("step_seconds", measured.step_s)):
            for value in values:
                self._histograms[name].observe(value)

    def _metric(self, name: str, description: str, kind: Any, **options: Any) -> Any:
        return self._family(name, description, kind).Metric(labels={}, **options)

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = self._pb_utils.MetricFamily(name=f"{PREFIX}_{name}", description=description, kind=kind)
        self._families.append(family)
        return family

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
    "slots": "Streams that may be open at once",
    "slots_in_use": "Slots that open streams hold",
    "queued_chunks": "Chunks accepted and not in a step yet",
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
    "deadline_misses_total": "Chunks accepted in time whose audio came after their listener ran dry",
    "voice_hits_total": "Voices found in the cache",
    "voice_misses_total": "Voices computed, or not found",
    "voice_evictions_total": "Voices dropped from the cache for room",
}
_HISTOGRAMS = {
    "step_batch_size": ("Streams advanced together in one step", BATCH_SIZE_BUCKETS),
    "queue_seconds": ("From a chunk's acceptance to its step", QUEUE_BUCKETS_S),
    "step_seconds": ("Duration of a step", STEP_BUCKETS_S),
}


def _value(stats: ServingStats, name: str) -> float:
    """Return a gauge's or a counter's value: the field of its name, but that every open stream holds a slot."""
    return float(getattr(stats, "open_streams" if name == "slots_in_use" else name.removesuffix("_total")))
