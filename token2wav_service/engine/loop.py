"""Runs the engine in a thread of its own and turns its results into callbacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from token2wav_service.contract import ServerStatus
from token2wav_service.engine.engine import ChunkResult, Token2WavEngine
from token2wav_service.engine.meter import Measurements
from token2wav_service.engine.types import (
    AudioChunk,
    EngineStats,
    StreamOptions,
    StreamSummary,
    TokenChunk,
    VoiceFeatures,
    VoicePrompt,
)
from token2wav_service.errors import EngineStoppedError, StreamNotFoundError, Token2WavError

logger = logging.getLogger(__name__)

REAP_INTERVAL_S = 0.5
"""How often a waiting loop looks for idle streams."""
VOICE_WORKERS = 1

OnResult = Callable[[AudioChunk | Token2WavError], None]
OnEnd = Callable[[StreamSummary], None]


class EngineLoop:
    """A running engine: thread-safe entry points, callbacks from the engine's thread."""

    def __init__(self, engine: Token2WavEngine) -> None:
        self.engine = engine
        self._wake = threading.Condition()
        self._stopping = False
        self._on_result: dict[tuple[str, int], OnResult] = {}
        self._on_end: dict[str, OnEnd] = {}
        self._thread = threading.Thread(target=self._serve, name="token2wav-engine", daemon=True)
        self._voice_workers = ThreadPoolExecutor(VOICE_WORKERS, thread_name_prefix="token2wav-voices")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Abort every stream and end the thread; later calls raise EngineStoppedError."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._voice_workers.shutdown(cancel_futures=True)

    def register_voice(self, prompt: VoicePrompt) -> Future[VoiceFeatures]:
        """Make a voice off the engine's thread; the future raises InvalidPromptError or CapacityError."""
        with self._wake:
            self._check_running()
            return self._voice_workers.submit(self.engine.voices.register, prompt)

    def export_voice(self, voice_id: str) -> Future[bytes]:
        """Write a cached voice's file off the engine's thread; the future raises VoiceNotFoundError."""
        with self._wake:
            self._check_running()
            return self._voice_workers.submit(self.engine.voices.export_file, voice_id)

    def import_voice(self, data: bytes) -> Future[VoiceFeatures]:
        """Make a voice from its file off the engine's thread; the future raises what `VoiceStore.import_file` does."""
        with self._wake:
            self._check_running()
            return self._voice_workers.submit(self.engine.voices.import_file, data)

    def open_stream(self, voice_id: str, options: StreamOptions, on_end: OnEnd) -> str:
        """Open a stream; `on_end` is called exactly once, whatever ends it.

        Raises:
            VoiceNotFoundError, CapacityError, InvalidRequestError, EngineStoppedError: nothing was opened.
        """
        with self._wake:
            self._check_running()
            stream_id = self.engine.open_stream(voice_id, options)
            self._on_end[stream_id] = on_end
            return stream_id

    def push(self, chunk: TokenChunk, on_result: OnResult) -> None:
        """Queue a chunk; `on_result` is called exactly once, from the engine's thread or from `abort`'s caller.

        Raises:
            StreamNotFoundError, InvalidChunkError, EngineStoppedError: the chunk was refused.
        """
        with self._wake:
            self._check_running()
            self.engine.add_chunk(chunk)
            self._on_result[chunk.stream_id, chunk.index] = on_result
            self._wake.notify_all()

    def abort(self, stream_id: str) -> None:
        """End a stream now; harmless for one that has ended."""
        results, summary = self.engine.abort(stream_id)
        for result in results:
            self._deliver(result)
        if summary is not None:
            self._end(summary)

    def stats(self) -> EngineStats:
        """Return the engine's counters."""
        return self.engine.stats()

    def status(self) -> ServerStatus:
        """Return how busy the engine is."""
        return self.engine.status()

    def take_measurements(self) -> Measurements:
        """Return what was measured since the last call, and forget it."""
        return self.engine.take_measurements()

    def _serve(self) -> None:
        try:
            while self._wait_for_work():
                for result in self.engine.step():
                    self._deliver(result)
        finally:
            # Also when a step raised: callers get answers and later calls are refused.
            with self._wake:
                self._stopping = True
            for stream_id in self.engine.open_stream_ids():
                self.abort(stream_id)

    def _wait_for_work(self) -> bool:
        """Block until a step has something to run; False when stopping."""
        while True:
            with self._wake:
                if self._stopping:
                    return False
                if self.engine.has_work():
                    self._gather()
                    return True
                self._wake.wait(REAP_INTERVAL_S)
            self._reap()

    def _gather(self) -> None:
        """Give other streams the configured time to join the step; called with the condition held."""
        config = self.engine.config
        if config.batch_window_us:
            full = min(config.max_batch_size, len(self.engine.open_stream_ids()))
            self._wake.wait_for(
                lambda: self._stopping or self.engine.ready_streams() >= full, config.batch_window_us / 1e6
            )

    def _reap(self) -> None:
        for stream_id in self.engine.idle_streams():
            logger.warning("stream %s got no chunk for %.0f s: aborted", stream_id, self.engine.config.idle_timeout_s)
            self.abort(stream_id)

    def _deliver(self, result: ChunkResult) -> None:
        with self._wake:
            callback = self._on_result.pop((result.stream_id, result.index))
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
            callback = self._on_end.pop(summary.stream_id)
        _call(callback, summary)

    def _check_running(self) -> None:
        if self._stopping:
            raise EngineStoppedError("token2wav is shutting down; retry on another replica")


def _call(callback: Callable[..., None], value: object) -> None:
    """Call a callback; what it raises must not end the engine's thread."""
    try:
        callback(value)
    except Exception:
        logger.exception("a result callback failed")
