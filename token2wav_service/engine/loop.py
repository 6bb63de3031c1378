"""Runs the engine in threads of its own and turns its results into callbacks.

Answering a caller takes the interpreter's lock several times, and the GPU would wait for that. So where a step has many
callers, a second thread answers them, and the next step, which was launched before, runs meanwhile. Where steps may run
beside others, a third thread runs urgent chunks: they don't wait for the step that runs when they come.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from typing import TypeVar

from servicekit.process import return_freed_memory
from token2wav_service.contract import ServerStatus
from token2wav_service.engine.engine import BegunStep, ChunkResult, Token2WavEngine
from token2wav_service.engine.meter import Measurements
from token2wav_service.engine.voices import STOP_TIMEOUT_S, BoundedPool, OnHeard
from token2wav_service.errors import (
    DeviceLostError,
    EngineStoppedError,
    StreamAbortedError,
    StreamNotFoundError,
    Token2WavError,
)
from token2wav_service.types import (
    AudioChunk,
    ServingStats,
    StreamOptions,
    StreamStatus,
    StreamSummary,
    TokenChunk,
    VoiceFeatures,
    VoicePrompt,
)

logger = logging.getLogger(__name__)

REAP_INTERVAL_S = 0.5
"""How often the loop looks for idle streams, under load too."""
REST_AFTER_S = 5.0
"""Without work and without open streams for so long, the engine returns memory that it has freed."""
FEW_RESULTS = 4
"""Most results of a step that the engine's own thread delivers: a second one would take turns with it and be later."""
VOICE_WORKERS = 1
MAX_PENDING_VOICES = 32
"""Voices in the making, and those that wait for it; one more is refused. A voice takes tenths of a second, so that the
last one is there in about ten, before its caller gives up."""

T = TypeVar("T")
OnResult = Callable[[AudioChunk | Token2WavError], None]
OnEnd = Callable[[StreamSummary], None]
OnFatal = Callable[[Exception], None]


class ServingLoop:
    """A running engine: thread-safe entry points, callbacks from its threads."""

    def __init__(
        self,
        engine: Token2WavEngine,
        on_fatal: OnFatal | None = None,
        on_rest: Callable[[], None] = return_freed_memory,
    ) -> None:
        """Take an engine for this loop alone.

        Args:
            on_fatal: called once, from the engine's thread, when it has ended by an error and everybody was answered;
                the process can't synthesise any more.
            on_rest: called from the engine's thread, once after each time of work.
        """
        self.engine = engine
        self._on_fatal = on_fatal
        self._on_rest = on_rest
        self._rest_at_s: float | None = None
        """None: it has rested since its last work."""
        self._wake = threading.Condition()
        self._stopping = False
        self._failure: Exception | None = None
        self._next_reap_s = engine.clock.now() + REAP_INTERVAL_S
        self._on_result: dict[tuple[str, int], OnResult] = {}
        self._open: dict[str, tuple[OnEnd, StreamSummary]] = {}
        """What each stream's end calls, and with what if the engine can't say any more how far the stream came."""
        self._done: SimpleQueue[list[ChunkResult] | None] = SimpleQueue()
        """Results that the second thread is to deliver, each step's in order; None behind the last."""
        self._handed_on = self._delivered = 0
        """Steps whose results were given to the second thread, and that it has delivered; each is one thread's."""
        self._thread = threading.Thread(target=self._serve, name="token2wav-engine", daemon=True)
        self._urgent_thread = threading.Thread(target=self._serve_urgent, name="token2wav-urgent", daemon=True)
        self._messenger = threading.Thread(target=self._deliver_all, name="token2wav-results", daemon=True)
        self._voice_workers = BoundedPool(VOICE_WORKERS, MAX_PENDING_VOICES, "token2wav-voices")

    def start(self) -> None:
        """Start the threads."""
        self._messenger.start()
        self._thread.start()
        if self.engine.runner.beside is not None:
            self._urgent_thread.start()

    def stop(self) -> None:
        """Abort every stream and end the threads; later calls raise EngineStoppedError."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        self._voice_workers.shutdown()

    def register_voice(
        self,
        load: Callable[[], VoicePrompt],
        is_wanted: Callable[[], bool] = lambda: True,
        on_heard: OnHeard = lambda *told: None,
    ) -> Future[VoiceFeatures]:
        """Make a voice off the engine's thread; the future raises InvalidPromptError or CapacityError.

        Args:
            load: returns the prompt when its turn comes; what it raises, the future does.
            is_wanted: asked before; if not, the future raises StreamAbortedError and nothing is computed.
            on_heard: see `VoiceStore.register`; from then on streams open in the voice, and wait for it.

        Raises:
            CapacityError: `MAX_PENDING_VOICES` are in the making already.
            EngineStoppedError: the engine isn't running.
        """

        def make() -> VoiceFeatures:
            if not is_wanted():
                raise StreamAbortedError("the request was cancelled before its voice was made")
            return self.engine.voices.register(load(), on_heard)

        return self._submit(make)

    def export_voice(self, voice_id: str) -> Future[bytes]:
        """Write a cached voice's file off the engine's thread; the future raises VoiceNotFoundError.

        Raises:
            CapacityError, EngineStoppedError: see `register_voice`.
        """
        return self._submit(lambda: self.engine.voices.export_file(voice_id))

    def import_voice(self, data: bytes) -> Future[VoiceFeatures]:
        """Make a voice from its file off the engine's thread; the future raises what `VoiceStore.import_file` does.

        Raises:
            CapacityError, EngineStoppedError: see `register_voice`.
        """
        return self._submit(lambda: self.engine.voices.import_file(data))

    def open_stream(self, voice_id: str, options: StreamOptions, on_end: OnEnd) -> str:
        """Open a stream, also in a voice that is being made; every kind of end calls `on_end` exactly once.

        Raises:
            VoiceNotFoundError, CapacityError, InvalidRequestError, EngineStoppedError: nothing was opened.
        """
        with self._wake:
            self._check_running()
            stream_id = self.engine.open_stream(voice_id, options)
            lost = StreamSummary(stream_id, voice_id, options.seed, StreamStatus.ABORTED)
            self._open[stream_id] = on_end, lost
            return stream_id

    def push(self, chunk: TokenChunk, on_result: OnResult) -> None:
        """Queue a chunk; `on_result` is called exactly once, from the loop's threads or from `abort`'s caller.

        Raises:
            StreamNotFoundError, InvalidChunkError, EngineStoppedError: the chunk was refused.
        """
        with self._wake:
            self._check_running()
            self.engine.add_chunk(chunk)
            self._on_result[chunk.stream_id, chunk.index] = on_result
            self._wake.notify_all()

    def abort(self, stream_id: str, cause: Token2WavError | None = None) -> None:
        """End a stream now; harmless for one that has ended. Its waiting chunks fail with the cause."""
        results, summary = self.engine.abort(stream_id, cause)
        self._deliver(results)
        if summary is not None:
            self._end(summary)

    def stats(self) -> ServingStats:
        """Return the engine's counters."""
        return self.engine.stats()

    def status(self) -> ServerStatus:
        """Return how busy the engine is; one that has stopped or failed drains: it takes no stream any more."""
        return replace(self.engine.status(), is_draining=self._stopping)

    def take_measurements(self) -> Measurements:
        """Return what was measured since the last call, and forget it."""
        return self.engine.take_measurements()

    def _serve(self) -> None:
        error: Exception | None = None
        try:
            begun = self._next_step()
            while begun is not None:
                behind = None
                if self.engine.runner.queues:
                    time.sleep(max(0.0, self.engine.rest_s(begun)))
                    behind = self._next_step(wait=False)
                self._hand_on(self.engine.end_step(begun))
                self._worked()
                begun = behind or self._next_step()
        except Exception as err:
            logger.critical("the engine's thread failed; this process can't synthesise any more", exc_info=err)
            error = err
        finally:
            # Callers get answers, what was made before the rest, and later calls are refused.
            with self._wake:
                self._stopping = True
                self._wake.notify_all()
            if self._urgent_thread.is_alive():
                self._urgent_thread.join(STOP_TIMEOUT_S)
            self._done.put(None)
            self._messenger.join(STOP_TIMEOUT_S)
            self._end_all()
        if error is not None and self._on_fatal is not None:
            _call(self._on_fatal, error)

    def _serve_urgent(self) -> None:
        try:
            while (begun := self._next_step(beside=True)) is not None:
                self._deliver(self.engine.end_step(begun))
                self._worked()
        except Exception as err:
            self._fail(err)

    def _fail(self, err: Exception) -> None:
        """Have the engine's thread end by an error, as by one of its own."""
        with self._wake:
            self._failure = err
            self._wake.notify_all()

    def _hand_on(self, results: list[ChunkResult]) -> None:
        """Deliver a few results at once, if none are before them; leave more to the second thread."""
        if len(results) <= FEW_RESULTS and self._delivered == self._handed_on:
            self._deliver(results)
        else:
            self._handed_on += 1
            self._done.put(results)

    def _deliver_all(self) -> None:
        try:
            while (results := self._done.get()) is not None:
                self._deliver(results)
                self._delivered += 1
        except Exception as err:
            self._fail(err)

    def _next_step(self, *, beside: bool = False, wait: bool = True) -> BegunStep | None:
        """Begin a step, when there is something to run; None when stopping.

        Args:
            beside: see `begin_step`.
            wait: block until there is something to run; else None where there is nothing.

        Raises:
            DeviceLostError: making a voice found that the GPU is lost.
            Exception: what ended another thread.
        """
        while True:
            for stream_id, error in self.engine.begin_streams():
                self.abort(stream_id, error)
            self._reap_if_due()
            self._rest_if_due()
            with self._wake:
                if self._stopping:
                    return None
                if self._failure is not None:
                    raise self._failure
                if wait and not beside:
                    self._gather()
                if (begun := self.engine.begin_step(beside=beside)) is not None or not wait:
                    return begun
                self._wake.wait(REAP_INTERVAL_S)

    def _gather(self) -> None:
        """Give other streams the configured time to join the step; called with the condition held."""
        engine, window_s = self.engine, self.engine.config.batch_window_us / 1e6
        if window_s and engine.ready_streams():
            full = min(engine.config.max_batch_size, len(engine.open_stream_ids()))
            self._wake.wait_for(lambda: self._stopping or engine.ready_streams() >= full, window_s)

    def _reap_if_due(self) -> None:
        now_s = self.engine.clock.now()
        if now_s >= self._next_reap_s:
            self._next_reap_s = now_s + REAP_INTERVAL_S
            self._reap()

    def _worked(self) -> None:
        self._rest_at_s = self.engine.clock.now() + REST_AFTER_S
        with self._wake:
            self._wake.notify_all()  # the step's streams may be ready for another thread's

    def _rest_if_due(self) -> None:
        is_due = self._rest_at_s is not None and self.engine.clock.now() >= self._rest_at_s
        if is_due and not self.engine.open_stream_ids():
            self._rest_at_s = None
            self._on_rest()

    def _reap(self) -> None:
        for stream_id in self.engine.idle_streams():
            logger.warning("stream %s got no chunk for %.0f s: aborted", stream_id, self.engine.config.idle_timeout_s)
            self.abort(stream_id)

    def _end_all(self) -> None:
        """Answer every chunk and end every stream, also streams that a broken engine has lost."""
        with self._wake:
            callbacks, self._on_result = list(self._on_result.values()), {}
        for callback in callbacks:
            _call(callback, EngineStoppedError("token2wav ended before this chunk was made; retry on another replica"))
        for stream_id in self.engine.open_stream_ids():
            try:
                self.abort(stream_id)
            except Exception:
                logger.exception("stream %s could not be aborted", stream_id)
        with self._wake:
            streams, self._open = list(self._open.values()), {}
        for on_end, lost in streams:
            _call(on_end, lost)

    def _deliver(self, results: list[ChunkResult]) -> None:
        for result in results:
            with self._wake:
                callback = self._on_result.pop((result.stream_id, result.index), None)
            if callback is not None:
                _call(callback, result.outcome)
            if result.ended is not None:
                self._drop_waiting(result.stream_id)
                self._end(result.ended)

    def _drop_waiting(self, stream_id: str) -> None:
        """Answer chunks that were queued behind one that ended the stream by failing."""
        with self._wake:
            left = [key for key in self._on_result if key[0] == stream_id]
            callbacks = [self._on_result.pop(key) for key in left]
        for callback in callbacks:
            _call(callback, StreamNotFoundError(f"stream {stream_id} ended before this chunk ran"))

    def _end(self, summary: StreamSummary) -> None:
        with self._wake:
            on_end, _ = self._open.pop(summary.stream_id, (None, None))
        if on_end is not None:
            _call(on_end, summary)

    def _submit(self, make: Callable[[], T]) -> Future[T]:
        with self._wake:
            self._check_running()
            self._worked()
            return self._voice_workers.submit(self._run_on_device, make)

    def _run_on_device(self, make: Callable[[], T]) -> T:
        """Call `make`; where it fails, see whether the GPU is lost, which the engine's thread must know."""
        try:
            return make()
        except Token2WavError:
            raise
        except Exception as err:
            self._check_device(err)
            raise
        finally:
            with self._wake:
                self._wake.notify_all()  # for streams that wait for the voice

    def _check_device(self, failure: Exception) -> None:
        try:
            self.engine.check_device(failure)
        except DeviceLostError as lost:
            self._fail(lost)
            raise

    def _check_running(self) -> None:
        if self._stopping:
            raise EngineStoppedError("token2wav is shutting down; retry on another replica")


def _call(callback: Callable[..., None], value: object) -> None:
    """Call a callback; what it raises must not end the engine's thread."""
    try:
        callback(value)
    except Exception:
        logger.exception("a result callback failed")
