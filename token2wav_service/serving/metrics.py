"""Publishes the engine's counters as Prometheus metrics through Triton (`cosydit_token2wav_*` on its metrics port),
and writes the spans of a traced stream: its life, and of each chunk the waiting and the step.

token2wav.stream ─┬─ chunk ─┬─ queue
                  │         └─ step
                  └─ chunk ...
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from servicekit.clock import SystemClock
from servicekit.tracing import NULL_SPAN, NULL_TRACER, Span, Tracer
from token2wav_service.contract import SAMPLE_RATE_HZ, ErrorCode
from token2wav_service.engine.voices import STOP_TIMEOUT_S
from token2wav_service.errors import Token2WavError
from token2wav_service.python_backend.inputs import PbUtils
from token2wav_service.types import AudioChunk, ChunkTiming, ServingStats, StreamStatus, StreamSummary, TokenChunk

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


SERVICE = "cosydit-token2wav"
_NS = 1_000_000_000


class StreamTrace:
    """The spans of one stream; without a span it does nothing."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._offset_ns = time.time_ns() - int(SystemClock().now() * _NS)
        """Time of day, in nanoseconds since 1970, when the engine's clock was at 0."""

    @property
    def trace_id(self) -> str | None:
        """Return 32 hexadecimal digits; None when nothing is recorded."""
        return self._span.trace_id

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the spans with an error that comes up inside."""
        try:
            yield
        except Exception as error:
            self._span.end(error)
            raise

    def chunk(self, chunk: TokenChunk, result: AudioChunk | Token2WavError) -> None:
        """Note a chunk that was answered."""
        if self._span is NULL_SPAN:
            return
        if isinstance(result, Token2WavError):
            failed = self._span.child("chunk")
            failed.note(index=chunk.index, tokens=len(chunk.token_ids))
            failed.end(result)
        elif result.timing is not None:
            self._made(chunk, result, result.timing)

    def end(self, summary: StreamSummary) -> None:
        """Note the stream's end."""
        self._span.note(
            stream_id=summary.stream_id,
            status=summary.status.value,
            chunks=len(summary.chunk_schedule),
            audio_s=summary.samples / SAMPLE_RATE_HZ,
        )
        if summary.status is not StreamStatus.FINISHED:
            self._span.event("aborted")
        self._span.end()

    def _made(self, chunk: TokenChunk, audio: AudioChunk, timing: ChunkTiming) -> None:
        moments_s = (timing.accepted_s, timing.started_s, timing.ended_s)
        began, started, ended = (self._offset_ns + int(moment_s * _NS) for moment_s in moments_s)
        span = self._span.child("chunk", start_ns=began)
        span.note(index=chunk.index, tokens=len(chunk.token_ids), audio_s=len(audio.samples) / SAMPLE_RATE_HZ)
        span.child("queue", start_ns=began).end(end_ns=started)
        step = span.child("step", start_ns=started)
        step.note(batch_size=timing.batch_size)
        step.end(end_ns=ended)
        span.end(end_ns=ended)


NO_TRACE = StreamTrace(NULL_SPAN)


def begin_trace(tracer: Tracer, traceparent: str | None) -> StreamTrace:
    """Begin a stream's spans if its caller traces it and we do."""
    if traceparent is None or tracer is NULL_TRACER:
        return NO_TRACE
    return StreamTrace(tracer.begin("token2wav.stream", traceparent))
