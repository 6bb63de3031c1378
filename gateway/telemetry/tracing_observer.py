"""Turns what the pipeline tells into spans below that of the call.

POST /v1/audio/speech ─ speech ─┬─ llm.generate       one a segment; the LLM's span hangs here
                                ├─ token2wav.stream   from the lease to the end; token2wav's spans hang here
                                └─ chunk              from the push to the audio's leaving the gateway
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from gateway.core import AudioChunk
from gateway.errors import GatewayError
from gateway.speech.observer import Observer, StreamObserver
from gateway.speech.request import GuardNote
from gateway.telemetry.call import current_call
from gateway.telemetry.metrics import Outcome, outcome_of
from servicekit.tracing import NULL_SPAN, Span, SpanKind, working_under


class TracingObserver(Observer):
    """Traces the streams of calls that are traced, and tells another observer of all."""

    def __init__(self, told: Observer) -> None:
        """Keep the other one."""
        self._told = told

    def begin(self, request_id: str) -> StreamObserver:
        """See `Observer.begin`."""
        call, told = current_call(), self._told.begin(request_id)
        if call is None or call.span is NULL_SPAN:
            return told
        span = call.span.child("speech")
        span.note(request_id=request_id, dialect=call.dialect)
        return _TracedStream(span, told)

    def refused(self, error: GatewayError) -> None:
        """See `Observer.refused`."""
        self._told.refused(error)


class _TracedStream(StreamObserver):
    def __init__(self, span: Span, told: StreamObserver) -> None:
        self._span = span
        self._told = told
        self._lease = NULL_SPAN
        self._generation = NULL_SPAN
        self._chunks: dict[int, Span] = {}
        self._tokens = self._generated = 0
        self._audio_s = 0.0

    @property
    def opening(self) -> AbstractContextManager[None]:  # type: ignore[override]
        self._lease = self._span.child("token2wav.stream", SpanKind.CLIENT)
        return working_under(self._lease.traceparent)

    def opened(self, stream_id: str) -> None:
        self._lease.event("opened")
        self._span.note(stream_id=stream_id)

    @property
    def speaking(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._generate()

    def received(self, tokens: int) -> None:
        self._told.received(tokens)
        if tokens and not self._generated:
            self._generation.event("first token")
        self._generated += tokens
        self._tokens += tokens

    def guarded(self, note: GuardNote) -> None:
        self._told.guarded(note)
        self._span.event(f"guard: {note.trouble} {note.outcome.value}")

    def sent(self, index: int, tokens: int) -> None:
        chunk = self._span.child("chunk", SpanKind.CLIENT)
        chunk.note(index=index, tokens=tokens)
        self._chunks[index] = chunk

    def heard(self, audio: AudioChunk) -> None:
        self._told.heard(audio)
        if audio.duration_s and not self._audio_s:
            self._span.event("first audio")
        self._audio_s += audio.duration_s
        chunk = self._chunks.pop(audio.index, NULL_SPAN)
        chunk.note(audio_s=audio.duration_s)
        chunk.end()

    def asked(self) -> None:
        self._told.asked()

    def ended(self, error: BaseException | None) -> None:
        self._told.ended(error)
        outcome = outcome_of(error)
        failure = None if outcome is Outcome.CANCELLED else error
        for chunk in self._chunks.values():
            chunk.note(is_delivered=False)
            chunk.end(failure)
        self._lease.end(failure)
        self._span.note(outcome=outcome.value, tokens=self._tokens, audio_s=self._audio_s)
        self._span.end(failure)

    @contextmanager
    def _generate(self) -> Iterator[None]:
        span = self._generation = self._span.child("llm.generate", SpanKind.CLIENT)
        self._generated = 0
        try:
            with working_under(span.traceparent):
                yield
        except BaseException as error:
            span.note(tokens=self._generated)
            span.end(error if isinstance(error, Exception) else None)
            raise
        span.note(tokens=self._generated)
        span.end()
