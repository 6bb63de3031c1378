"""Turns what the pipeline and the doors tell into metrics, and into spans below that of the call.

Slack is how long before its listener would have run dry a chunk came:

    first audio ├──── audio so far ────┤ runs dry
                          next chunk ▲ ├ ─ ─ ─ slack above 0
                                       ├ ─ ─ ▲ next chunk: slack below 0, an underrun

The listener plays from the first audio on and, after an underrun, from the chunk that ended it. A caller who asks for
the next chunk only when its audio is over, as one who reads slowly does, waits for us from then on.

POST /v1/audio/speech ─ speech ─┬─ llm.generate       one a segment; the LLM's span hangs here
                                ├─ token2wav.stream   from the lease to the end; token2wav's spans hang here
                                └─ chunk              from the push to the audio's leaving the gateway
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gateway.core import AudioChunk
from gateway.errors import GatewayError, wire_status
from gateway.speech.observer import Observer, StreamObserver
from gateway.speech.request import GuardNote
from gateway.telemetry.call import Call, current_call
from gateway.telemetry.metrics import GatewayMetrics, Outcome, outcome_of, outcome_of_status
from servicekit.clock import Clock
from servicekit.tracing import NULL_SPAN, Span, SpanKind, working_under
from token2wav_service.contract import SAMPLES_PER_TOKEN


class CallObserver(Observer):
    """Counts and traces streams on behalf of calls; the gateway's own warm-up is left out."""

    def __init__(self, metrics: GatewayMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def begin(self, request_id: str) -> StreamObserver:
        call = current_call()
        if call is None:
            return StreamObserver()
        call.is_told = True
        span = call.span
        if span is not NULL_SPAN:
            span = span.child("speech")
            span.note(request_id=request_id, dialect=call.dialect)
        return _ObservedStream(self._metrics, self._clock, call.dialect, span)

    def refused(self, error: GatewayError) -> None:
        call = current_call()
        if call is not None:
            call.is_told = True
            self._metrics.count_end(call.dialect, outcome_of(error), wire_status(error).code)

    def refused_at_the_door(self, call: Call, http_status: int) -> None:
        """Note a call that was answered with an error before the pipeline heard of it."""
        if not call.is_told:
            self._metrics.count_end(call.dialect, outcome_of_status(http_status), f"http_{http_status}")


class _ObservedStream(StreamObserver):
    def __init__(self, metrics: GatewayMetrics, clock: Clock, dialect: str, span: Span) -> None:
        self._metrics = metrics
        self._clock = clock
        self._dialect = dialect
        self._dry_s: float | None = None
        """When the listener has played all audio so far; None before the first."""
        self._began_s = self._asked_s = clock.now()
        self._tokens = self._generated = self._samples = 0
        self._audio_s = 0.0
        self._span = span
        """Records nothing where the call is not traced; nor do its children."""
        self._lease = self._generation = NULL_SPAN
        self._chunks: dict[int, Span] = {}
        metrics.streams.inc()

    @property
    def opening(self) -> AbstractContextManager[None]:  # type: ignore[override]
        self._lease = self._span.child("token2wav.stream", SpanKind.CLIENT)
        return nullcontext() if self._span is NULL_SPAN else working_under(self._lease.traceparent)

    def opened(self, stream_id: str) -> None:
        self._lease.event("opened")
        self._span.note(stream_id=stream_id)

    @property
    def speaking(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext() if self._span is NULL_SPAN else self._generate()

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

    def received(self, tokens: int) -> None:
        self._metrics.speech_tokens.inc(tokens)
        if tokens and not self._generated:
            self._generation.event("first token")
        self._generated += tokens
        self._tokens += tokens

    def guarded(self, note: GuardNote) -> None:
        self._metrics.guarded.labels(note.trouble, note.outcome.value).inc()
        self._span.event(f"guard: {note.trouble} {note.outcome.value}")

    def sent(self, index: int, tokens: int) -> None:
        chunk = self._chunks[index] = self._span.child("chunk", SpanKind.CLIENT)
        chunk.note(index=index, tokens=tokens)

    def heard(self, audio: AudioChunk) -> None:
        chunk = self._chunks.pop(audio.index, NULL_SPAN)
        chunk.note(audio_s=audio.duration_s)
        chunk.end()
        if not len(audio.samples):
            return
        now_s = self._clock.now()
        if self._dry_s is None:
            self._span.event("first audio")
            self._metrics.first_audio.observe(now_s - self._began_s)
            self._dry_s = now_s
        else:
            slack_s = max(self._dry_s, self._asked_s) - now_s
            self._metrics.slack.observe(slack_s)
            if slack_s < 0:
                self._metrics.underrun.inc(-slack_s)
        self._dry_s = max(self._dry_s, now_s) + audio.duration_s
        self._samples += len(audio.samples)
        self._audio_s += audio.duration_s
        self._metrics.audio.inc(audio.duration_s)

    def asked(self) -> None:
        self._asked_s = self._clock.now()

    def ended(self, error: BaseException | None) -> None:
        outcome = outcome_of(error)
        failure = None if outcome is Outcome.CANCELLED else error
        self._metrics.streams.dec()
        if outcome is not Outcome.COMPLETED:
            self._metrics.wasted_tokens.inc(max(self._tokens - self._samples // SAMPLES_PER_TOKEN, 0))
        self._metrics.count_end(self._dialect, outcome, None if failure is None else wire_status(failure).code)
        for chunk in self._chunks.values():
            chunk.note(is_delivered=False)
            chunk.end(failure)
        self._lease.end(failure)
        self._span.note(outcome=outcome.value, tokens=self._tokens, audio_s=self._audio_s)
        self._span.end(failure)
