"""The Triton face of the token2wav engine: requests in, engine calls, responses out.

Knows the wire contract and leases; knows nothing of models, batching or torch. An `open` request is kept open as
the stream's lease: when its caller cancels it or vanishes, the stream is aborted.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from servicekit.clock import SystemClock
from servicekit.tracing import TRACEPARENT, endpoint_of, open_tracer
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import CALLER_HAS_SHARE, DEFAULT_PRIORITY, Operation
from token2wav_service.engine.voices import STOP_TIMEOUT_S
from token2wav_service.errors import EngineStoppedError, InvalidRequestError, StreamAbortedError, Token2WavError
from token2wav_service.python_backend.inputs import PbUtils, RequestInputs, Responder, text_tensor
from token2wav_service.python_backend.server_process import is_draining, note_end, read_parameters, server_ender
from token2wav_service.serving.metrics import NO_TRACE, SERVICE, EngineMetrics, StreamTrace, begin_trace
from token2wav_service.types import (
    AudioChunk,
    FloatArray,
    IntArray,
    StreamOptions,
    StreamSummary,
    TokenChunk,
    VoiceFeatures,
    VoicePrompt,
)

if TYPE_CHECKING:
    from token2wav_service.engine.loop import ServingLoop

logger = logging.getLogger(__name__)

LEASE_POLL_INTERVAL_S = 0.05
LEASE_POLLS_PER_S = 2000
"""Most callers that are asked in a second whether they are still there: each question takes the interpreter from the
engine."""
METRICS_INTERVAL_S = 0.25


@dataclass
class _Lease:
    """An open stream and the request that keeps it open."""

    responder: Responder
    stream_id: str = ""
    has_ended: bool = False
    trace: StreamTrace = NO_TRACE


class Token2WavModel:
    """Behind the Triton model `token2wav_dit`: one asynchronous decoupled instance."""

    def __init__(
        self,
        pb_utils: PbUtils,
        engine: ServingLoop,
        decode_audio: Callable[[bytes], FloatArray],
        *,
        lease_poll_interval_s: float = LEASE_POLL_INTERVAL_S,
        metrics_interval_s: float = METRICS_INTERVAL_S,
    ) -> None:
        """Start the engine and the two threads beside it.

        Args:
            pb_utils: the module `triton_python_backend_utils`.
            decode_audio: an audio file's bytes to [N] mono float32 at 16 kHz; raises InvalidPromptError.
            lease_poll_interval_s: how often callers are asked whether they are still there; many less often.
            metrics_interval_s: how often the engine's counters are published.
        """
        self._pb_utils = pb_utils
        self._engine = engine
        self._decode_audio = decode_audio
        self._tracer = open_tracer(SERVICE, endpoint_of())
        self._lease_poll_interval_s = lease_poll_interval_s
        self._leases: dict[str, _Lease] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._operations: Mapping[Operation, Callable[[RequestInputs, Responder], None]] = {
            Operation.REGISTER_VOICE: self._register_voice,
            Operation.EXPORT_VOICE: self._export_voice,
            Operation.IMPORT_VOICE: self._import_voice,
            Operation.OPEN: self._open,
            Operation.PUSH: self._push,
            Operation.ABORT: self._abort,
            Operation.STATUS: self._status,
        }
        engine.start()
        self._metrics = EngineMetrics(pb_utils, engine, metrics_interval_s)
        self._metrics.start()
        self._watcher = threading.Thread(target=self._watch_leases, name="lease-watcher", daemon=True)
        self._watcher.start()

    @classmethod
    def load(cls, pb_utils: PbUtils, model_config_json: str) -> Token2WavModel:
        """Build the engine that the model's config.pbtxt describes.

        Raises:
            ValueError: a parameter is unknown or does not parse.
            CheckpointError: the checkpoint is incomplete.
        """
        # NOTE: imported here, so that the adapter alone needs no torch.
        from token2wav_service.build import build_engine_loop
        from token2wav_service.features.audio import load_prompt_audio

        config = Token2WavConfig.from_mapping(read_parameters(model_config_json))
        return cls(pb_utils, build_engine_loop(config, SystemClock(), server_ender()), load_prompt_audio)

    def execute(self, requests: list[Any]) -> None:
        """Hand every request to the engine and return; never blocks on computation, never raises."""
        for request in requests:
            try:
                self._serve(request)
            except Exception:
                # NOTE: one request that can't even be refused must not cost the rest of the batch.
                logger.exception("a request could not be answered")

    def _serve(self, request: Any) -> None:
        responder = Responder(self._pb_utils, request, self._metrics.count_failure)
        try:
            self._dispatch(RequestInputs(self._pb_utils, request), responder)
        except Exception as err:
            responder.fail(err)

    def finalize(self) -> None:
        """Stop the engine, which answers everything that waits, then the threads."""
        self._stopping.set()
        self._watcher.join(STOP_TIMEOUT_S)
        self._engine.stop()
        self._metrics.stop()
        for lease in list(self._leases.values()):
            lease.responder.fail(EngineStoppedError("the server stopped while the stream was open: open it again"))
        self._tracer.close()
        note_end()

    def _dispatch(self, inputs: RequestInputs, responder: Responder) -> None:
        name = inputs.text("operation")
        try:
            operation = Operation(name)
        except ValueError as err:
            known = ", ".join(each.value for each in Operation)
            raise InvalidRequestError(f"unknown operation {name!r}: expected one of {known}") from err
        # NOTE: the answer is a round trip to the server; a push whose caller left goes with its stream.
        if operation is not Operation.PUSH and responder.is_cancelled():
            raise StreamAbortedError("the request was cancelled before it was served")
        self._operations[operation](inputs, responder)

    def _register_voice(self, inputs: RequestInputs, responder: Responder) -> None:
        """Answer with the voice as soon as its tokens are known; chunks of a stream in it wait until it is ready."""
        has_samples, has_file = inputs.has("reference_wav"), inputs.has("reference_audio")
        if has_samples == has_file:
            raise InvalidRequestError(
                "register_voice needs exactly one of reference_wav (FP32, 16 kHz mono) and reference_audio "
                f"(an audio file's bytes): got {'both' if has_samples else 'neither'}"
            )
        given = inputs.floats("reference_wav").copy() if has_samples else inputs.raw_bytes("reference_audio")

        def load() -> VoicePrompt:
            return VoicePrompt(self._decode_audio(given) if isinstance(given, bytes) else given)

        is_wanted, tell = lambda: not responder.is_cancelled(), partial(_send_voice, responder)
        making = self._engine.register_voice(load, is_wanted, tell)
        making.add_done_callback(_when_done(responder, partial(_send_features, responder)))

    def _export_voice(self, inputs: RequestInputs, responder: Responder) -> None:
        exporting = self._engine.export_voice(inputs.text("voice_id"))
        exporting.add_done_callback(_when_done(responder, lambda data: _send_voice_file(data, responder)))

    def _import_voice(self, inputs: RequestInputs, responder: Responder) -> None:
        importing = self._engine.import_voice(inputs.raw_bytes("voice_file"))
        importing.add_done_callback(_when_done(responder, partial(_send_features, responder)))

    def _open(self, inputs: RequestInputs, responder: Responder) -> None:
        if is_draining():
            raise EngineStoppedError("the server stops when its streams have ended: open the stream on another one")
        voice_id = inputs.text("voice_id")
        options = _read_options(inputs)
        trace = begin_trace(self._tracer, inputs.parameter(TRACEPARENT))
        options = dataclasses.replace(options, trace_id=trace.trace_id)
        lease = _Lease(responder, trace=trace)
        with trace.failing():
            on_end = partial(self._end_lease, lease)
            lease.stream_id = self._engine.open_stream(voice_id, options, on_end)
        with self._lock:
            if not lease.has_ended:
                self._leases[lease.stream_id] = lease
        try:
            responder.send({"stream_id": text_tensor(lease.stream_id)})
        except Exception as err:
            responder.fail(err)
            self._engine.abort(lease.stream_id)  # nobody knows its id

    def _push(self, inputs: RequestInputs, responder: Responder) -> None:
        chunk = TokenChunk(
            stream_id=inputs.text("stream_id"),
            index=inputs.integer("chunk_index", np.int32),
            token_ids=tuple(inputs.integers("token_ids").tolist()),
            is_last=inputs.boolean("is_last"),
        )
        with self._lock:
            lease = self._leases.get(chunk.stream_id)
        trace = lease.trace if lease is not None else NO_TRACE

        def on_result(result: AudioChunk | Token2WavError) -> None:
            trace.chunk(chunk, result)
            if not _send_audio(result, responder):
                # A stream that has lost a chunk is no use: its next chunks would join over a gap.
                self._engine.abort(chunk.stream_id)

        self._engine.push(chunk, on_result)

    def _abort(self, inputs: RequestInputs, responder: Responder) -> None:
        self._engine.abort(inputs.text("stream_id"))
        responder.finish()

    def _status(self, inputs: RequestInputs, responder: Responder) -> None:
        status = self._engine.status()
        status = dataclasses.replace(status, is_draining=status.is_draining or is_draining())
        responder.finish({"status": text_tensor(status.to_json())})

    def _end_lease(self, lease: _Lease, summary: StreamSummary) -> None:
        with self._lock:
            lease.has_ended = True
            self._leases.pop(summary.stream_id, None)
        lease.trace.end(summary)
        document = dataclasses.asdict(summary) | {"status": summary.status.value}
        lease.responder.finish({"stream_summary": text_tensor(json.dumps(document))})

    def _watch_leases(self) -> None:
        leases: list[_Lease] = []
        while not self._stopping.wait(max(self._lease_poll_interval_s, len(leases) / LEASE_POLLS_PER_S)):
            with self._lock:
                leases = list(self._leases.values())
            for lease in leases:
                self._abort_if_abandoned(lease)

    def _abort_if_abandoned(self, lease: _Lease) -> None:
        try:
            if lease.responder.is_cancelled():
                logger.info("stream_id=%s: its caller left; aborting", lease.stream_id)
                self._engine.abort(lease.stream_id)
        except Exception:
            # NOTE: the watcher serves every stream, so no single lease may end it.
            logger.exception("stream_id=%s: could not check its lease", lease.stream_id)


def _read_options(inputs: RequestInputs) -> StreamOptions:
    seed = inputs.integer("seed", np.int64) if inputs.has("seed") else 0
    priority = inputs.integer("priority", np.int32) if inputs.has("priority") else DEFAULT_PRIORITY
    return StreamOptions(seed, priority, caller_has_share=inputs.parameter(CALLER_HAS_SHARE) is not None)


def _when_done(responder: Responder, use: Callable[[Any], None]) -> Callable[[Future[Any]], None]:
    """Return a callback that passes a future's result on, and answers the request if there is none."""

    def on_done(future: Future[Any]) -> None:
        try:
            use(future.result())
        except CancelledError:
            responder.fail(EngineStoppedError("the server stopped before the voice was made: register it again"))
        except Exception as err:
            responder.fail(err)

    return on_done


# NOTE: the FINAL flag travels with the data. A caller that has its answer may cancel its call at once, and a cancel
# that overtakes a separate FINAL makes Triton 2.51 keep the request for ever, so that the model can't unload.
def _send_features(responder: Responder, features: VoiceFeatures) -> None:
    _send_voice(responder, features.voice_id, features.prompt_tokens, features.silence_cut_s)


def _send_voice(responder: Responder, voice_id: str, prompt_tokens: IntArray, silence_cut_s: float) -> None:
    responder.finish(
        {
            "voice_id": text_tensor(voice_id),
            "prompt_speech_tokens": prompt_tokens.astype(np.int32),
            "silence_cut_s": np.array([silence_cut_s], np.float32),
        }
    )


def _send_voice_file(data: bytes, responder: Responder) -> None:
    responder.finish({"voice_file": np.array([data], dtype=np.object_)})


def _send_audio(result: AudioChunk | Token2WavError, responder: Responder) -> bool:
    """Answer a chunk; False if its audio is lost on the way."""
    if isinstance(result, Token2WavError):
        responder.fail(result)
        return True
    return responder.finish({"waveform": np.ascontiguousarray(result.samples, dtype=np.float32)})
