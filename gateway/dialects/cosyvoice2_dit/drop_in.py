"""The Triton face of the speech pipeline: the original runtime's tensors in, waveform out.

Knows requests, responses and cancellation; the pipeline is the gateway's own. Imports no torch. One process serves a
bounded number of requests at once and leaves the others in Triton's queue, where their Triton priority orders them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gateway.core import FloatArray, InlineVoice
from gateway.dialects.cosyvoice2_dit.settings import DropInConfig, open_pipeline
from gateway.errors import GatewayError, public_text, wire_status
from gateway.speech.request import SpeechRequest
from gateway.text import TextOptions
from gateway.text.styles import style_of
from servicekit.tasks import stop
from token2wav_service.contract import DEFAULT_PRIORITY, ErrorCode, encode_error
from token2wav_service.errors import InvalidRequestError
from token2wav_service.python_backend.inputs import (
    PbUtils,
    RequestInputs,
    Responder,
    error_response,
    error_text,
    make_response,
)
from token2wav_service.python_backend.server_process import is_decoupled, read_parameters

logger = logging.getLogger(__name__)

PRIORITY_PARAMETER = "priority_class"
"""Request parameter that names our scheduling class; the python backend does not show Triton's own priority."""
SEED_PARAMETER = "seed"
STYLE_PARAMETER = "style"
"""Request parameter for how to speak; refused where the checkpoint takes no instructions, as a response has no place
for a warning."""
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_CANCELLED = encode_error(ErrorCode.CANCELLED, "the request was cancelled by its caller")

T = TypeVar("T")


Tensors = dict[str, npt.NDArray[Any]]
"""Tensors of one response, by name."""


def load_model(pb_utils: PbUtils, model_config_json: str) -> StreamingModel | WholeModel:
    """Build the model that its config.pbtxt describes; `decoupled` there selects which.

    Raises:
        ConfigError: a parameter can't work.
    """
    config = DropInConfig.from_parameters(read_parameters(model_config_json))
    requests = SpeechRequests(pb_utils, config.default_voice if config.has_voices else None)
    parts = (pb_utils, PipelineRunner(lambda: open_pipeline(config)), requests)
    if is_decoupled(model_config_json):
        return StreamingModel(*parts, max_requests=config.requests_per_instance)
    return WholeModel(*parts)


class Requests(Protocol):
    """A kind of Triton request: what it asks for, whole and checked, and the answer to that."""

    def read(self, request: Any) -> Any: ...
    def answers(self, pipeline: Any, asked: Any) -> AsyncGenerator[Tensors]: ...


class PipelineRunner:
    """An event loop in a thread of its own, with the pipeline open inside it."""

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """Start the loop and open the pipeline; raises what opening raises."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="drop-in-loop", daemon=True)
        self._thread.start()
        self._context = open_()
        self.pipeline = self.submit(self._context.__aenter__()).result(_START_TIMEOUT_S)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what runs, close the pipeline and end the thread."""
        self.submit(self._shut_down()).result(_STOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        self._loop.close()

    async def _shut_down(self) -> None:
        await stop(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        await self._context.__aexit__(None, None, None)


class SpeechRequests:
    """Requests for speech."""

    def __init__(self, pb_utils: PbUtils, default_voice: str | None) -> None:
        """`default_voice` serves requests without reference audio; None refuses them."""
        self._pb_utils = pb_utils
        self._default_voice = default_voice

    def read(self, request: Any) -> SpeechRequest:
        """Read and check everything at once.

        Raises:
            InvalidRequestError: a tensor or parameter that can't be used.
        """
        inputs = RequestInputs(self._pb_utils, request)
        parameters = json.loads(request.parameters() or "{}")
        seed = parameters.get(SEED_PARAMETER)
        return SpeechRequest(
            text=inputs.text("target_text"),
            voice=self._read_voice(inputs),
            seed=None if seed is None else _integer(seed, SEED_PARAMETER),
            priority=_integer(parameters.get(PRIORITY_PARAMETER, DEFAULT_PRIORITY), PRIORITY_PARAMETER),
            text_options=TextOptions(style=style_of(style=str(parameters.get(STYLE_PARAMETER) or ""))),
        )

    async def answers(self, pipeline: Any, asked: SpeechRequest) -> AsyncGenerator[Tensors]:
        """Yield the samples of each chunk that has any."""
        async with aclosing(pipeline.synthesize(asked)) as chunks:
            async for chunk in chunks:
                if len(chunk.samples):
                    yield {"waveform": np.ascontiguousarray(chunk.samples, dtype=np.float32)[np.newaxis, :]}

    def _read_voice(self, inputs: RequestInputs) -> str | InlineVoice:
        transcript = inputs.text("reference_text") if inputs.has("reference_text") else ""
        if inputs.has("reference_wav"):
            return InlineVoice(_read_reference(inputs), transcript)
        if transcript or self._default_voice is None:
            raise InvalidRequestError(
                "the request has no reference_wav: send 16 kHz mono FP32 samples with their transcript in "
                "reference_text, or assemble the repository with voices_dir and send neither"
            )
        return self._default_voice


class _Model:
    """Serves requests over one pipeline; a responder takes the answer to each."""

    cancel_poll_interval_s = 0.05

    def __init__(self, pb_utils: PbUtils, runner: PipelineRunner, requests: Requests) -> None:
        self._pb_utils = pb_utils
        self._runner = runner
        self._requests = requests

    def finalize(self) -> None:
        """Stop what runs; each request still gets its answer."""
        self._runner.close()

    def _start(self, request: Any, responder: Responder | _Gathered) -> Future[None] | None:
        """Begin to answer a request; None: it was refused."""
        try:
            asked = self._requests.read(request)
        except Exception as err:
            responder.fail_with(describe_error(err))
            return None
        return self._runner.submit(self._serve(asked, responder))

    async def _serve(self, asked: Any, responder: Responder | _Gathered) -> None:
        speaking = asyncio.create_task(self._speak(asked, responder))
        try:
            while not (await asyncio.wait({speaking}, timeout=self.cancel_poll_interval_s))[0]:
                if await asyncio.to_thread(responder.is_cancelled):
                    speaking.cancel()
            speaking.result()
            await asyncio.to_thread(responder.finish)
        except asyncio.CancelledError:
            await stop(speaking)
            responder.fail_with(_CANCELLED)
        except Exception as err:
            await asyncio.to_thread(responder.fail_with, describe_error(err))

    async def _speak(self, asked: Any, responder: Responder | _Gathered) -> None:
        async with aclosing(self._requests.answers(self._runner.pipeline, asked)) as answers:
            async for tensors in answers:
                await asyncio.to_thread(responder.send, tensors)


class StreamingModel(_Model):
    """Decoupled: every chunk is a response, then an empty one with the FINAL flag."""

    def __init__(self, *parts: Any, max_requests: int) -> None:
        """Take the parts of any model; `max_requests` are served at once."""
        super().__init__(*parts)
        self._slots = threading.Semaphore(max_requests)

    def execute(self, requests: list[Any]) -> None:
        """Start every request; return when there is room for one more.

        While this blocks, Triton keeps what comes in its queue and orders it by Triton priority.
        """
        for request in requests:
            self._slots.acquire()
            if (begun := self._start(request, Responder(self._pb_utils, request))) is None:
                self._slots.release()
            else:
                begun.add_done_callback(lambda _: self._slots.release())
        self._slots.acquire()
        self._slots.release()


class WholeModel(_Model):
    """Not decoupled: one response with the whole answer, so that Triton's plain HTTP `infer` works."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, an error included; they run side by side."""
        gathered = [_Gathered(request) for request in requests]
        for begun in [self._start(*each) for each in zip(requests, gathered, strict=True)]:
            if begun is not None:
                begun.result()
        return [each.response(self._pb_utils) for each in gathered]


class _Gathered:
    """Takes the place of a `Responder` where all tensors go out in one response."""

    def __init__(self, request: Any) -> None:
        self.is_cancelled: Callable[[], bool] = request.is_cancelled
        self._parts: list[Tensors] = []
        self._error: str | None = None

    def send(self, tensors: Tensors) -> None:
        self._parts.append(tensors)

    def finish(self) -> None:
        """There is nothing to do."""

    def fail_with(self, message: str) -> None:
        self._error = message

    def response(self, pb_utils: PbUtils) -> Any:
        """Return the response, tensors of one name joined along their last axis."""
        if self._error is not None:
            return error_response(pb_utils, self._error)
        whole = {name: np.concatenate([part[name] for part in self._parts], axis=-1) for name in self._parts[0]}
        return make_response(pb_utils, whole)


def describe_error(error: BaseException) -> str:
    """Write any error for the wire."""
    if isinstance(error, GatewayError):
        return encode_error(wire_status(error).triton, public_text(error))
    return error_text(error)


def _read_reference(inputs: RequestInputs) -> FloatArray:
    samples = inputs.floats("reference_wav")
    if not inputs.has("reference_wav_len"):
        return samples.copy()
    length = inputs.integer("reference_wav_len", np.int32)
    if not 1 <= length <= len(samples):
        raise InvalidRequestError(f"reference_wav_len is {length}: expected 1 to {len(samples)}, the samples sent")
    return samples[:length].copy()


def _integer(value: Any, name: str) -> int:
    """Read a request parameter; clients may send it as a number or as its decimal text."""
    try:
        return int(str(value))
    except ValueError:
        raise InvalidRequestError(f"the parameter {name} is {value!r}: expected an integer") from None
