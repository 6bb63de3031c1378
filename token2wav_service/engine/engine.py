"""The engine: opens streams, takes their chunks, runs the ready ones in batches, frees what ends.

Every method may be called from any thread; `step` from one thread at a time, and of urgent chunks from one more. It
knows nothing of the wire.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np

from servicekit.clock import Clock
from servicekit.stream_limit import COLD_STREAMS, StreamLimit, extra_streams, reserved_streams
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import SAMPLE_RATE_HZ, ServerStatus
from token2wav_service.engine.meter import EngineMeter, Measurements
from token2wav_service.engine.runner import ChunkOutcome, ChunkWork, Finish, Runner
from token2wav_service.engine.stream import (
    BESIDE_WAITING,
    Stream,
    check_options,
    checked_tokens,
    next_batch,
    urgent_batch,
)
from token2wav_service.engine.voices import VoiceStore
from token2wav_service.errors import (
    CapacityError,
    DeviceLostError,
    StreamAbortedError,
    StreamNotFoundError,
    Token2WavError,
)
from token2wav_service.types import (
    AudioChunk,
    ChunkTiming,
    ServingStats,
    StreamOptions,
    StreamStatus,
    StreamSummary,
    TokenChunk,
)

logger = logging.getLogger(__name__)


LAUNCH_SHARE = 0.8
"""Share of its usual time after which the step behind one is launched; the rest is the host's for its inputs."""


@dataclass(frozen=True)
class ChunkResult:
    """The outcome of one accepted chunk."""

    stream_id: str
    index: int
    outcome: AudioChunk | Token2WavError
    ended: StreamSummary | None
    """Set when the stream ended with this chunk."""


@dataclass(frozen=True)
class BegunStep:
    """A step that was launched and has not ended."""

    streams: list[Stream]
    works: list[ChunkWork]
    """One for every stream, in their order."""
    began_s: float
    """Clock time."""
    beside: bool
    """Whether it runs beside another step."""
    kind: tuple[int, int]
    """Its bucket, and its size in bits: steps of a kind take alike."""
    finish: Finish


class Token2WavEngine:
    """Continuous batching of many streams over one set of models."""

    def __init__(
        self,
        config: Token2WavConfig,
        voices: VoiceStore,
        runner: Runner,
        clock: Clock,
        probe_device: Callable[[], None] = lambda: None,
        *,
        is_realtime: bool = False,
        cold_streams: int = COLD_STREAMS,
    ) -> None:
        """Take the parts that the engine is made of.

        Args:
            cold_streams: streams that it admits while nothing is measured and listeners wait.
            is_realtime: listeners wait: admit as many streams as are served in time; False: `config.max_streams`.
            probe_device: raises where the device can't compute any more; asked after a failure.
        """
        self.config = config
        self.voices = voices
        self.clock = clock
        self.runner = runner
        """Computes; others use it for measurements, while nothing steps the engine."""
        self._probe_device = probe_device
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        self._under_way = 0
        """Steps begun and not ended, not counting those beside others."""
        self._free_s = 0.0
        """Clock time when the latest of them ended."""
        self._took_s: dict[tuple[int, int], float] = {}
        """Seconds that steps of each kind took, rather the least of late."""
        self._meter = EngineMeter()
        slots = config.max_streams
        most = max(1, slots - reserved_streams(slots)) if is_realtime else slots
        self._limit = StreamLimit(most, clock, cold=cold_streams, is_fixed=not is_realtime)

    def open_stream(self, voice_id: str, options: StreamOptions) -> str:
        """Open a stream of a registered voice; returns its id. Of one that is being made, `begin_streams` begins it.

        Raises:
            InvalidRequestError: a seed or priority out of range.
            VoiceNotFoundError: the voice is not cached.
            CapacityError: as many streams as can be served in time are open.
        """
        check_options(options)
        with self._lock:
            is_extra = self._check_room(options)
            now, making = self.clock.now(), self.voices.cache.under_way(voice_id)
            stream = Stream(uuid.uuid4().hex, voice_id, options, now, now, making, is_extra=is_extra)
            if making is None:
                self._begin(stream)
            self._streams[stream.stream_id] = stream
            return stream.stream_id

    def begin_streams(self) -> list[tuple[str, Token2WavError]]:
        """Begin streams whose voice has been made; returns those with a chunk whose voice can't be had, and why."""
        failed = []
        with self._lock:
            for stream in self._streams.values():
                if stream.making is not None and stream.making.done():
                    try:
                        stream.making.result()
                        self._begin(stream)
                    except Exception as err:
                        if stream.waiting:
                            failed.append((stream.stream_id, _as_ours(err)))
        return failed

    def add_chunk(self, chunk: TokenChunk) -> None:
        """Accept a stream's next chunk; it runs in a later step.

        Raises:
            StreamNotFoundError: the stream was never opened or has ended.
            InvalidChunkError: refused; the stream is as it was.
        """
        with self._lock:
            stream = self._stream(chunk.stream_id)
            token_ids = checked_tokens(stream, chunk, self.runner.facts, self.config.max_chunk_tokens)
            stream.waiting.append(TokenChunk(chunk.stream_id, chunk.index, token_ids, chunk.is_last))
            stream.accepted_s.append(self.clock.now())
            stream.next_index += 1
            stream.has_last = chunk.is_last
            stream.lookahead = token_ids[-self.runner.facts.lookahead_tokens :]
            stream.schedule.append(len(token_ids))
            stream.last_activity_s = self.clock.now()

    def step(self) -> list[ChunkResult]:
        """Run one batch; returns a result for every chunk in it, none when nothing was ready.

        Raises:
            DeviceLostError: see `end_step`.
        """
        begun = self.begin_step()
        return [] if begun is None else self.end_step(begun)

    def begin_step(self, *, beside: bool = False) -> BegunStep | None:
        """Choose and launch the next batch, which no other step then takes; None when nothing is ready.

        `end_step` must follow. While a step runs, a second one begins to run behind it only if it is full: more chunks
        that could join it meanwhile find no room anyway.

        Args:
            beside: take urgent chunks only, to run beside the step that runs now; None too when there is no such step.
        """
        with self._lock:
            open_streams, most = self._streams.values(), self.config.max_batch_size
            if beside:
                streams = urgent_batch(open_streams, self.runner, self.clock.now()) if self._under_way else []
            else:
                streams = next_batch(open_streams, self.runner, most)
            if not streams:
                return None
            bucket = max(self.runner.bucket(stream.waiting[0], stream.state) for stream in streams)
            if not beside and self._under_way and len(streams) < self.runner.step_size(bucket, most, is_crowded=False):
                return None
            self._under_way += not beside
            for stream in streams:
                stream.in_step = True
                stream.status = StreamStatus.RUNNING
            works, began_s = [_work(stream) for stream in streams], self.clock.now()
        kind = bucket, (len(works) - 1).bit_length()
        return BegunStep(streams, works, began_s, beside, kind, self._launched(works, beside=beside))

    def rest_s(self, begun: BegunStep) -> float:
        """Return the seconds until the next step should be launched behind one that runs; 0 or less: now.

        That is shortly before it ends: the later the next batch is chosen, the fewer urgent chunks come behind it.
        """
        if self.ready_streams() <= BESIDE_WAITING:
            return 0.0
        with self._lock:
            began_s = max(begun.began_s, self._free_s)
            return began_s + LAUNCH_SHARE * self._took_s.get(begun.kind, 0.0) - self.clock.now()

    def end_step(self, begun: BegunStep) -> list[ChunkResult]:
        """Wait for a step; returns a result for every chunk in it. Steps end in the order of their beginning.

        Raises:
            DeviceLostError: no step can run any more; chunks of this one have no result.
        """
        outcomes = self._outcomes(begun.works, begun.finish, beside=begun.beside)
        with self._lock:
            began_s, ended_s = begun.began_s, self.clock.now()
            if not begun.beside:
                began_s = max(began_s, self._free_s)
                self._under_way, self._free_s = self._under_way - 1, ended_s
                took_s = ended_s - began_s
                self._took_s[begun.kind] = min(took_s, 1.1 * self._took_s.get(begun.kind, took_s))
            streams, size = begun.streams, len(begun.works)
            self._meter.step(size, ended_s - began_s)
            timings = [ChunkTiming(s.accepted_s.popleft(), began_s, ended_s, size) for s in streams]
            settled = zip(streams, outcomes, timings, strict=True)
            return [self._settle(*each, beside=begun.beside) for each in settled]

    def abort(
        self, stream_id: str, cause: Token2WavError | None = None
    ) -> tuple[list[ChunkResult], StreamSummary | None]:
        """End a stream now and free its state; harmless for a stream that has ended.

        Returns:
            `cause`, or a `StreamAbortedError`, as the result of every chunk that waited outside a step, and the summary
            (None if the stream had ended before). A chunk inside a running step gets its result from that step.
        """
        with self._lock:
            stream = self._streams.get(stream_id)
            if stream is None:
                return [], None
            waiting = list(stream.waiting)[1:] if stream.in_step else list(stream.waiting)
            summary = self._end(stream, StreamStatus.ABORTED)
            error = cause or StreamAbortedError(f"stream {stream_id} was aborted before this chunk ran")
            return [ChunkResult(stream_id, chunk.index, error, None) for chunk in waiting], summary

    def ready_streams(self) -> int:
        """Streams a step could run now."""
        with self._lock:
            return sum(stream.is_ready for stream in self._streams.values())

    def idle_streams(self) -> list[str]:
        """Return ids of streams that have waited for their next chunk longer than allowed."""
        limit = self.clock.now() - self.config.idle_timeout_s
        with self._lock:
            return [s.stream_id for s in self._streams.values() if not s.waiting and s.last_activity_s < limit]

    def open_stream_ids(self) -> list[str]:
        """Return ids of all open streams."""
        with self._lock:
            return list(self._streams)

    def stats(self) -> ServingStats:
        """Return the counters as they are now."""
        cache = self.voices.cache.stats()
        with self._lock:
            return self._meter.stats(self._streams.values(), self.config.max_streams, cache)

    def status(self) -> ServerStatus:
        """Return how busy the engine is now; it never says that it drains, which is its server's to know."""
        with self._lock:
            return self._meter.status(self._streams.values(), self._limit, self.runner.facts.hop_multiple)

    def take_measurements(self) -> Measurements:
        """Return what was measured since the last call, and forget it."""
        with self._lock:
            return self._meter.take()

    def check_device(self, failure: Exception) -> None:
        """See after a failure whether the device still computes.

        Raises:
            DeviceLostError: it doesn't, and won't in this process.
        """
        try:
            self._probe_device()
        except Exception as err:
            raise DeviceLostError(
                f"the device is lost ({err}), seen after a failure ({failure}); restart the process"
            ) from failure

    def check_integrity(self) -> None:
        """Raise AssertionError if open streams and pinned voices disagree; for tests and idle moments."""
        self.voices.cache.check_integrity()
        with self._lock:
            open_statuses = (StreamStatus.WAITING, StreamStatus.RUNNING)
            assert all(stream.status in open_statuses for stream in self._streams.values())
            in_use = {stream.voice_id for stream in self._streams.values() if stream.making is None}
        assert self.voices.cache.stats().pinned_voices == len(in_use)

    def _begin(self, stream: Stream) -> None:
        """Pin a stream's voice and take a state."""
        voice = self.voices.cache.acquire(stream.voice_id)
        try:
            stream.state = self.runner.open(voice.state)
        except BaseException:
            self.voices.cache.release(stream.voice_id)
            raise
        stream.making = None
        # NOTE: the time for which chunks waited for their voice is not the engine's.
        stream.accepted_s = deque(self.clock.now() for _ in stream.waiting)

    def _check_room(self, options: StreamOptions) -> bool:
        """Check that one more stream may open; returns whether it takes room kept for callers with few streams.

        Raises:
            CapacityError: it may not.
        """
        streams, limit = self._streams.values(), self._limit
        if len(streams) < limit.streams:
            return False
        extra = sum(stream.is_extra for stream in streams)
        has_extra_room = extra < extra_streams(limit.streams) and len(streams) < self.config.max_streams
        if has_extra_room and not options.caller_has_share:
            return True
        retry_s = limit.next_end_s(len(streams))
        raise CapacityError(f"{len(streams)} streams are open, {limit.streams} may be; try again in {retry_s:.1f} s")

    def _stream(self, stream_id: str) -> Stream:
        stream = self._streams.get(stream_id)
        if stream is None:
            raise StreamNotFoundError(f"stream {stream_id!r} is not open: it has ended, or never was; open a new one")
        return stream

    def _launched(self, works: Sequence[ChunkWork], *, beside: bool) -> Finish:
        try:
            return self.runner.launch(works, beside=beside)
        except Exception as err:
            return partial(_fail, err)

    def _outcomes(
        self, works: Sequence[ChunkWork], finish: Finish, *, beside: bool
    ) -> list[ChunkOutcome | Token2WavError]:
        """Wait for the batch; if it fails, run each chunk alone, so that only the chunk at fault fails."""
        try:
            outcomes = finish()
        except Exception as err:
            self.check_device(err)
            if len(works) == 1:
                logger.exception("a chunk failed")
                return [_as_ours(err)]
            logger.warning("a step of %d streams failed (%s); running them one by one", len(works), err)
            alone = ([work] for work in works)
            return [
                outcome
                for one in alone
                for outcome in self._outcomes(one, self._launched(one, beside=beside), beside=beside)
            ]
        return [_checked_outcome(outcome) for outcome in outcomes]

    def _settle(
        self, stream: Stream, outcome: ChunkOutcome | Token2WavError, timing: ChunkTiming, *, beside: bool
    ) -> ChunkResult:
        stream.in_step = False
        chunk = stream.waiting.popleft()
        self._meter.chunk(timing)
        if stream.status is StreamStatus.ABORTED:
            self.runner.close(stream.state)
            error = StreamAbortedError(f"stream {stream.stream_id} was aborted while this chunk ran")
            return ChunkResult(stream.stream_id, chunk.index, error, None)
        if isinstance(outcome, Token2WavError):
            return ChunkResult(stream.stream_id, chunk.index, outcome, self._end(stream, StreamStatus.ABORTED))
        stream.state = outcome.state
        stream.status = StreamStatus.WAITING
        kept = self._meter.deliver(stream, timing, len(outcome.samples))
        if kept is not None and not beside:  # else it does not tell whether there is time for all
            self._limit.note_piece(kept.slack_s, kept.room_s, len(outcome.samples) / SAMPLE_RATE_HZ, len(self._streams))
        audio = AudioChunk(stream.stream_id, chunk.index, outcome.samples, chunk.is_last, timing)
        ended = self._end(stream, StreamStatus.FINISHED) if chunk.is_last else None
        return ChunkResult(stream.stream_id, chunk.index, audio, ended)

    def _end(self, stream: Stream, status: StreamStatus) -> StreamSummary:
        stream.status = status
        del self._streams[stream.stream_id]
        if stream.making is None:
            self.voices.cache.release(stream.voice_id)
            if not stream.in_step:
                # A running step still uses the state; `_settle` closes it then.
                self.runner.close(stream.state)
        self._meter.end(status)
        if status is StreamStatus.FINISHED:
            self._limit.note_end(self.clock.now() - stream.opened_s)
        logger.info(
            "stream %s %s: %d chunks, %.2f s of audio, open for %.3f s",
            stream.stream_id,
            status.value,
            stream.next_index - len(stream.waiting),
            stream.samples / SAMPLE_RATE_HZ,
            self.clock.now() - stream.opened_s,
            extra={"stream_id": stream.stream_id, "trace_id": stream.options.trace_id},
        )
        return stream.summary()


def _fail(err: Exception) -> NoReturn:
    raise err


def _as_ours(err: Exception) -> Token2WavError:
    if isinstance(err, Token2WavError):
        return err
    failure = Token2WavError(f"synthesis failed: {err}")
    failure.__cause__ = err
    return failure


def _work(stream: Stream) -> ChunkWork:
    chunk = stream.waiting[0]
    return ChunkWork(chunk.token_ids, chunk.is_last, stream.options.seed, stream.state)


def _checked_outcome(outcome: ChunkOutcome) -> ChunkOutcome | Token2WavError:
    if not np.isfinite(outcome.samples).all():
        return Token2WavError("synthesis made samples that are not finite; check the checkpoint and the dtype")
    return outcome
