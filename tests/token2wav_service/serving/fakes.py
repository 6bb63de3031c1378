"""Stand-ins for Triton's python backend and for the engine, so that the adapters run without either."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from token2wav_service.contract import SAMPLES_PER_TOKEN, ServerStatus
from token2wav_service.engine.meter import Measurements
from token2wav_service.engine.stream import check_options
from token2wav_service.engine.voices import OnHeard
from token2wav_service.errors import (
    EngineStoppedError,
    InvalidPromptError,
    InvalidVoiceFileError,
    StreamAbortedError,
    StreamNotFoundError,
    Token2WavError,
    VoiceNotCachedError,
)
from token2wav_service.types import (
    AudioChunk,
    FloatArray,
    ServingStats,
    StreamOptions,
    StreamStatus,
    StreamSummary,
    TokenChunk,
    VoiceFeatures,
    VoicePrompt,
)

FINAL = 1


@dataclass
class FakeTensor:
    tensor_name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


class FakeError:
    def __init__(self, message: str) -> None:
        self._message = message

    def message(self) -> str:
        return self._message


@dataclass
class FakeResponse:
    output_tensors: list[FakeTensor]
    error: FakeError | None = None

    def named(self) -> dict[str, Any]:
        return {tensor.tensor_name: tensor.array for tensor in self.output_tensors}


@dataclass
class FakeSender:
    """Records what a real sender would refuse as well: anything after FINAL."""

    sent: list[FakeResponse] = field(default_factory=list)
    finals: int = 0
    cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    failing_sends: int = 0
    """So many sends fail before one succeeds."""
    closes_on_failure: bool = False
    """As Triton does: a FINAL that failed closes the sender all the same."""
    is_closed: bool = False

    def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
        assert self.finals == 0, "sent after the FINAL flag"
        if self.is_closed:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if self.failing_sends:
            self.failing_sends -= 1
            self.is_closed = self.closes_on_failure and bool(flags & FINAL)
            raise RuntimeError("Failed to increase the shared memory pool size: No space left on device")
        if response is not None:
            self.sent.append(response)
        if flags & FINAL:
            self.finals += 1
            self.done.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def error(self) -> str:
        errors = [response.error.message() for response in self.sent if response.error is not None]
        assert len(errors) == 1, f"expected one error, got {errors}"
        return errors[0]


class FakeRequest:
    """A request and, in decoupled models, its sender."""

    def __init__(self, tensors: Mapping[str, Any], parameters: str = "{}", request_id: str = "") -> None:
        self.tensors = {name: FakeTensor(name, array) for name, array in tensors.items()}
        self.sender = FakeSender()
        self._parameters = parameters
        self._request_id = request_id

    def get_response_sender(self) -> FakeSender:
        return self.sender

    def is_cancelled(self) -> bool:
        return self.sender.cancelled

    def parameters(self) -> str:
        return self._parameters

    def request_id(self) -> str:
        return self._request_id


class FakeMetric:
    """Refuses to be written once its family is gone, as the real one does."""

    def __init__(self, family: FakeMetricFamily) -> None:
        self._family = weakref.ref(family)
        self.total = 0.0
        self.observed: list[float] = []

    def increment(self, value: float) -> None:
        self._check()
        self.total += value

    def set(self, value: float) -> None:
        self._check()
        self.total = value

    def observe(self, value: float) -> None:
        self._check()
        self.observed.append(value)

    def _check(self) -> None:
        assert self._family() is not None, "the MetricFamily was deleted before its Metric"


class FakeMetricFamily:
    GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
    metrics: dict[str, FakeMetric]

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._name = name

    def Metric(self, labels: Mapping[str, str], buckets: list[float] | None = None) -> FakeMetric:
        label_text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        return self.metrics.setdefault(f"{self._name}{{{label_text}}}" if labels else self._name, FakeMetric(self))


class FakePbUtils:
    """The part of `triton_python_backend_utils` that the adapters use."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    Tensor = FakeTensor
    TritonError = FakeError
    InferenceResponse = FakeResponse

    def __init__(self) -> None:
        self.metrics: dict[str, FakeMetric] = {}
        self.MetricFamily = type("Family", (FakeMetricFamily,), {"metrics": self.metrics})

    @staticmethod
    def get_input_tensor_by_name(request: FakeRequest, name: str) -> FakeTensor | None:
        return request.tensors.get(name)


@dataclass
class _FakeStream:
    voice_id: str
    options: StreamOptions
    on_end: Callable[[StreamSummary], None]
    samples: int = 0


_Job = tuple[TokenChunk, Callable[[AudioChunk | Token2WavError], None]]


class FakeEngineLoop:
    """Answers every chunk with a ramp whose level is the chunk's first token, from a thread of its own.

    Token id 666 makes the engine fail on that chunk; `paused()` lets chunks wait.
    """

    FAILING_TOKEN = 666

    def __init__(self) -> None:
        self.streams: dict[str, _FakeStream] = {}
        self.voices: dict[str, VoiceFeatures] = {}
        self._exported: dict[bytes, VoiceFeatures] = {}
        self.counters = SimpleNamespace(**dict.fromkeys((each.name for each in fields(ServingStats)), 0))
        self.counters.batch_size_histogram, self.counters.slots = {}, 64
        self.hold_voices = False
        self.wanted: list[Callable[[], bool]] = []
        self.is_stopped = False
        self.queue_s: list[float] = []
        self.step_s: list[float] = []
        self._held: list[Future[VoiceFeatures]] = []
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._running = threading.Event()
        self._running.set()
        self._lock = threading.RLock()
        self._opened = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._running.set()
        self._jobs.put(None)
        self._thread.join()
        for future in self._held:
            future.set_exception(EngineStoppedError("the engine stopped"))
        for stream_id in list(self.streams):
            self._end(stream_id, StreamStatus.ABORTED)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._running.clear()
        try:
            yield
        finally:
            self._running.set()

    def register_voice(
        self,
        load: Callable[[], VoicePrompt],
        is_wanted: Callable[[], bool] = lambda: True,
        on_heard: OnHeard = lambda *told: None,
    ) -> Future[VoiceFeatures]:
        future: Future[VoiceFeatures] = Future()
        self.wanted.append(is_wanted)
        if self.hold_voices:
            self._held.append(future)
            return future
        try:
            prompt = load()
            if not np.any(prompt.samples):
                raise InvalidPromptError("the prompt is silent: send speech")
        except InvalidPromptError as err:
            future.set_exception(err)
            return future
        features = VoiceFeatures(
            f"voice-{len(prompt.samples)}",
            np.arange(5, dtype=np.int64),
            np.zeros((10, 80), np.float32),
            np.zeros(192, np.float32),
        )
        future.set_result(self._keep(features))
        return future

    def export_voice(self, voice_id: str) -> Future[bytes]:
        future: Future[bytes] = Future()
        if voice_id in self.voices:
            file = b"\xff\0" + voice_id.encode()
            self._exported[file] = self.voices[voice_id]
            future.set_result(file)
        else:
            future.set_exception(VoiceNotCachedError(f"no voice {voice_id!r}: register it"))
        return future

    def import_voice(self, data: bytes) -> Future[VoiceFeatures]:
        future: Future[VoiceFeatures] = Future()
        if data in self._exported:
            future.set_result(self._keep(self._exported[data]))
        else:
            future.set_exception(InvalidVoiceFileError("no voice file"))
        return future

    def _keep(self, features: VoiceFeatures) -> VoiceFeatures:
        self.voices[features.voice_id] = features
        self.counters.voices = len(self.voices)
        return features

    def open_stream(self, voice_id: str, options: StreamOptions, on_end: Callable[[StreamSummary], None]) -> str:
        check_options(options)
        with self._lock:
            if voice_id not in self.voices:
                raise VoiceNotCachedError(f"no voice {voice_id!r}: register it")
            self._opened += 1
            stream_id = f"stream-{self._opened}"
            self.streams[stream_id] = _FakeStream(voice_id, options, on_end)
            self.counters.open_streams = len(self.streams)
            return stream_id

    def push(self, chunk: TokenChunk, on_result: Callable[[AudioChunk | Token2WavError], None]) -> None:
        if chunk.stream_id not in self.streams:
            raise StreamNotFoundError(f"no stream {chunk.stream_id!r}")
        self._jobs.put((chunk, on_result))

    def abort(self, stream_id: str) -> None:
        self._end(stream_id, StreamStatus.ABORTED)

    def stats(self) -> ServingStats:
        return ServingStats(**vars(self.counters))

    def status(self) -> ServerStatus:
        return ServerStatus(4, len(self.streams), self.counters.steps, 0.01, self.is_stopped)

    def take_measurements(self) -> Measurements:
        taken = Measurements(tuple(self.queue_s), tuple(self.step_s))
        self.queue_s, self.step_s = [], []
        return taken

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._running.wait()
            chunk, on_result = job
            on_result(self._compute(chunk))
            if chunk.is_last:
                self._end(chunk.stream_id, StreamStatus.FINISHED)

    def _compute(self, chunk: TokenChunk) -> AudioChunk | Token2WavError:
        with self._lock:
            stream = self.streams.get(chunk.stream_id)
            if stream is None:
                return StreamAbortedError("the stream was aborted")
            if self.FAILING_TOKEN in chunk.token_ids:
                return Token2WavError("the engine failed on this chunk")
            samples: FloatArray = np.full(
                len(chunk.token_ids) * SAMPLES_PER_TOKEN, chunk.token_ids[0] / 10_000, np.float32
            )
            stream.samples += len(samples)
            self.counters.steps += 1
            self.queue_s.append(0.004)
            self.step_s.append(0.05)
            self.counters.chunks += 1
            sizes = self.counters.batch_size_histogram
            sizes[1] = sizes.get(1, 0) + 1
            return AudioChunk(chunk.stream_id, chunk.index, samples, chunk.is_last)

    def _end(self, stream_id: str, status: StreamStatus) -> None:
        with self._lock:
            stream = self.streams.pop(stream_id, None)
            self.counters.open_streams = len(self.streams)
        if stream is None:
            return
        if status is StreamStatus.FINISHED:
            self.counters.finished += 1
        else:
            self.counters.aborted += 1
        stream.on_end(StreamSummary(stream_id, stream.voice_id, stream.options.seed, status, samples=stream.samples))
