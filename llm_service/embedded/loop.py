"""The thread that owns an engine: takes requests and aborts from any thread, calls `step`, hands out results.

Knows nothing of HTTP and nothing of models.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import Histogram

from llm_service.embedded.engine import METRICS, SpeechLMEngine
from llm_service.embedded.types import (
    DEFAULT_PRIORITY,
    EngineStats,
    GenerationOutput,
    GenerationRequest,
)
from llm_service.errors import EngineError, InvalidGenerationError, LLMStoppedError, QueueFullError
from llm_service.vocab import SPEECH_TOKENS_PER_SECOND
from servicekit.clock import Clock
from servicekit.stream_limit import (
    FIRST_ROOM_S,
    NEXT_END_S,
    OPEN_STREAMS,
    STREAMS,
    StreamLimit,
    extra_streams,
)

logger = logging.getLogger(__name__)

OnOutput = Callable[[GenerationOutput], None]

LONGEST_TURN_S = 30.0
"""Seconds after which an engine that has not ended its step hangs: a step takes a second at most, on a slow CPU."""
STOP_TIMEOUT_S = 30.0
HEAD_START_S = 0.5
"""Seconds from an answer's first token until its listener hears it: token2wav waits for a whole chunk."""
FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)


@dataclass
class _Entry:
    """A request in flight."""

    request: GenerationRequest
    on_output: OnOutput
    arrived_s: float
    is_extra: bool = False  # taken beyond the limit
    first_token_s: float | None = None
    token_count: int = 0
    last_output_s: float = 0.0

    def note_tokens(self, count: int, now_s: float) -> tuple[float, float]:
        """Note tokens; return their slack and their room in seconds (`servicekit.stream_limit`)."""
        if self.first_token_s is None:
            self.first_token_s = now_s
            due_s, ordered_s = self.arrived_s + FIRST_ROOM_S, self.arrived_s
        else:
            due_s = self.first_token_s + HEAD_START_S + self.token_count / SPEECH_TOKENS_PER_SECOND
            ordered_s = self.last_output_s
        self.token_count, self.last_output_s = self.token_count + count, now_s
        return due_s - now_s, due_s - ordered_s


@dataclass
class _Inbox:
    """What other threads ask for, until the engine thread looks."""

    requests: list[GenerationRequest] = field(default_factory=list)
    texts: list[tuple[str, Sequence[int], bool]] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    is_stopping: bool = False

    def has_mail(self) -> bool:
        return bool(self.requests or self.texts or self.aborts or self.is_stopping)


class EngineLoop:
    """Runs an engine in one thread of its own."""

    def __init__(self, engine: SpeechLMEngine, max_queue_size: int, clock: Clock) -> None:
        """Take an engine for this loop alone.

        As many requests of listeners are taken as are answered in time, and `max_queue_size` of any kind at most beyond
        those that have a slot.
        """
        self._engine = engine
        self._clock = clock
        self._condition = threading.Condition()  # guards _inbox, _entries, _limit, _is_running
        self._max_in_flight = engine.limits.slots + max_queue_size
        self._limit = StreamLimit(self._max_in_flight, clock)
        self._inbox = _Inbox()
        self._entries: dict[str, _Entry] = {}
        self._is_running = False
        said = "From a request's arrival to its first token"
        self._first_token = Histogram(
            f"{METRICS}_first_token_seconds", said, registry=None, buckets=FIRST_TOKEN_BUCKETS_S
        )
        self._stats = engine.stats()
        self._turn_began_s: float | None = None
        """When the turn under way began; None: the thread waits for work."""
        self._thread = threading.Thread(target=self._run, name="speech-lm-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._is_running = True
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; requests in flight get `LLMStoppedError`. May be called twice."""
        with self._condition:
            self._inbox.is_stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    @property
    def is_running(self) -> bool:
        """Tell whether requests can be taken."""
        with self._condition:
            return self._is_running and not self._inbox.is_stopping

    @property
    def hangs(self) -> bool:
        """Tell whether the engine has been at one step for far longer than any takes."""
        began_s = self._turn_began_s
        return began_s is not None and self._clock.now() - began_s > LONGEST_TURN_S

    def stats(self) -> EngineStats:
        """Return the counters after the latest step; what waits is counted as it is now.

        A request that is being prefilled waits: together with those that run it makes all that are not answered.
        """
        with self._condition:
            stats, in_flight = self._stats, len(self._entries)
        waiting = max(in_flight - stats.running, 0)
        return replace(stats, waiting=waiting)

    def histograms(self) -> tuple[Histogram, ...]:
        """Return what is counted in buckets."""
        return self._first_token, self._engine.step_rows

    def room(self) -> dict[str, str]:
        """Return how many requests of listeners may be in flight, how many are, and when one ends, as metadata."""
        with self._condition:
            in_flight = len(self._entries)
            ends_s = self._limit.next_end_s(in_flight)
            return {STREAMS: str(self._limit.streams), OPEN_STREAMS: str(in_flight), NEXT_END_S: f"{ends_s:.3f}"}

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._engine.limits.max_sequence_tokens

    @property
    def speech_ids(self) -> range:
        """LLM ids of the speech tokens, in their order."""
        return self._engine.speech_ids

    def submit(self, request: GenerationRequest, on_output: OnOutput) -> None:
        """Queue a request; thread-safe.

        Args:
            request: its id must be new.
            on_output: called in the engine's thread for everything that comes out, the last one marked; must not block.
                Not called any more after an abort.

        Raises:
            InvalidGenerationError: it can never run here.
            QueueFullError: too many requests are in flight; retry later.
            LLMStoppedError: the engine isn't running.
        """
        self._engine.validate(request)
        with self._condition:
            if not self._is_running or self._inbox.is_stopping:
                raise LLMStoppedError("the engine is not running; see the server's log")
            most = self._most_in_flight(request)
            if len(self._entries) >= most:
                retry_s = self._limit.next_end_s(len(self._entries))
                got = f"{len(self._entries)} requests are in flight, {most} may be"
                raise QueueFullError(f"{got}; try again in {retry_s:.1f} s", retry_after_s=retry_s)
            if request.request_id in self._entries:
                raise InvalidGenerationError(f"request id {request.request_id} is in use; ids must be new")
            is_extra = request.has_listener and len(self._entries) >= self._limit.streams
            self._entries[request.request_id] = _Entry(request, on_output, self._clock.now(), is_extra)
            self._inbox.requests.append(request)
            self._condition.notify()

    def feed(self, request_id: str, text_ids: Sequence[int], is_last: bool) -> None:
        """Bring more text of an interleaved answer; thread-safe, and harmless when it has ended.

        Text that it can't take ends it with an error.
        """
        with self._condition:
            if request_id in self._entries:
                self._inbox.texts.append((request_id, text_ids, is_last))
                self._condition.notify()

    def abort(self, request_id: str) -> None:
        """Stop working on a request; thread-safe, and harmless when it has ended."""
        with self._condition:
            if request_id in self._entries:
                self._inbox.aborts.append(request_id)
                self._condition.notify()

    def _run(self) -> None:
        error = LLMStoppedError("the engine was stopped")
        try:
            while self._turn():
                pass
        except Exception as err:
            logger.exception("the engine failed")
            error = LLMStoppedError(f"the engine failed: {err}; restart the server")
        finally:
            self._fail_all(error)

    def _turn(self) -> bool:
        """Wait for work and do one step of it; return False when it is time to stop."""
        with self._condition:
            while not self._inbox.has_mail() and (idle_s := self._engine.idle_s()) > 0:
                self._condition.wait(min(idle_s, threading.TIMEOUT_MAX))
            inbox, self._inbox = self._inbox, _Inbox(is_stopping=self._inbox.is_stopping)
        if inbox.is_stopping:
            return False
        self._turn_began_s = self._clock.now()
        outputs = self._take(inbox)
        if self._engine.idle_s() == 0:
            outputs += self._engine.step()
        self._stats = self._engine.stats()
        for output in outputs:
            self._deliver(output)
        self._turn_began_s = None
        return True

    def _take(self, inbox: _Inbox) -> list[GenerationOutput]:
        """Hand the inbox to the engine; return the ends of the answers that can't take their text."""
        refused: list[GenerationOutput] = []
        for request in inbox.requests:
            self._engine.add_request(request)
        for request_id, text_ids, is_last in inbox.texts:
            try:
                self._engine.feed(request_id, text_ids, is_last)
            except EngineError as err:
                self._engine.abort(request_id)
                refused.append(GenerationOutput(request_id, error=err))
        for request_id in inbox.aborts:
            self._engine.abort(request_id)
            self._forget(request_id, "aborted")
        return refused

    def _deliver(self, output: GenerationOutput) -> None:
        entry = self._entries.get(output.request_id)
        if entry is None:
            return
        if output.token_ids:
            self._note_tokens(entry, len(output.token_ids))
        if output.is_last:
            reason = output.finish_reason.value if output.finish_reason else f"failed: {output.error}"
            self._forget(output.request_id, reason)
        try:
            entry.on_output(output)
        except Exception:
            # The caller's side is gone or broken; that must not reach other requests.
            logger.exception("the receiver of request %s failed", output.request_id)
            self._engine.abort(output.request_id)
            self._forget(output.request_id, "receiver failed")

    def _most_in_flight(self, request: GenerationRequest) -> int:
        """Return with how many requests in flight one more is taken; a few more where its caller has no others."""
        if not request.has_listener:
            return self._max_in_flight
        limit = self._limit.streams
        if request.priority >= DEFAULT_PRIORITY:
            return limit
        extra = sum(entry.is_extra for entry in self._entries.values())
        room = extra < extra_streams(limit)
        return self._max_in_flight if room else limit

    def _note_tokens(self, entry: _Entry, count: int) -> None:
        is_first, now_s = entry.first_token_s is None, self._clock.now()
        slack_s, room_s = entry.note_tokens(count, now_s)
        if is_first:
            self._first_token.observe(now_s - entry.arrived_s)
        if entry.request.has_listener:
            with self._condition:
                self._limit.note_piece(slack_s, room_s, count / SPEECH_TOKENS_PER_SECOND, len(self._entries))

    def _forget(self, request_id: str, reason: str) -> None:
        now = self._clock.now()
        with self._condition:
            entry = self._entries.pop(request_id, None)
            if entry is not None:
                self._limit.note_end(now - entry.arrived_s)
        if entry is None:
            return
        first_ms = -1.0 if entry.first_token_s is None else (entry.first_token_s - entry.arrived_s) * 1e3
        logger.info(
            "request %s ended: %s; prompt_tokens=%d tokens=%d first_token_ms=%.1f total_ms=%.1f",
            *(request_id, reason, len(entry.request.prompt_ids), entry.token_count, first_ms),
            (now - entry.arrived_s) * 1e3,
            extra={"request_id": request_id, "trace_id": entry.request.trace_id},
        )

    def _fail_all(self, error: LLMStoppedError) -> None:
        with self._condition:
            self._is_running = False
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            self._engine.abort(entry.request.request_id)
            try:
                entry.on_output(GenerationOutput(entry.request.request_id, error=error))
            except Exception:
                logger.exception("the receiver of request %s failed", entry.request.request_id)
        self._stats = self._engine.stats()
