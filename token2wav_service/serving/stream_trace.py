"""Spans of one stream: its life, and of each chunk the waiting and the step, written from what was measured.

token2wav.stream ─┬─ chunk ─┬─ queue
                  │         └─ step
                  └─ chunk ...
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from servicekit.clock import SystemClock
from servicekit.tracing import NULL_SPAN, NULL_TRACER, Span, Tracer
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.errors import Token2WavError
from token2wav_service.types import AudioChunk, ChunkTiming, StreamStatus, StreamSummary, TokenChunk

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
