"""One bidirectional call to a Triton model: requests out of a queue, responses as tensors or typed errors.

Writes and reads Triton's messages itself: its client makes several objects for each tensor of each chunk. Knows how
tensors and errors travel, nothing of voices or streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as messages

from gateway import errors
from servicekit.tasks import cancel, raise_if_cancelled
from servicekit.timeouts import Patience, patient_timeout, timeout
from servicekit.tracing import trace_headers
from token2wav_service.contract import TOKEN2WAV_MODEL, ErrorCode, Operation, decode_error

Tensors = dict[str, npt.NDArray[Any]]
"""Tensors by name; BYTES are object arrays of bytes."""
_DTYPES: dict[str, type[np.generic]] = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}
_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}
_BYTES = "BYTES"
_LENGTH = struct.Struct("<I")


class TritonCall:
    """A call that lives until it is cancelled, broken or ended by the server."""

    def __init__(self, stub: Any, url: str, timeout_s: float | None = None) -> None:
        """Begin the call.

        Args:
            stub: a `GRPCInferenceServiceStub`.
            timeout_s: from now to the call's end; None: as long as it takes, which is right for a stream, because a
                listener in real time may take hours and each of its chunks has a deadline of its own.
        """
        self._url = url
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._is_answered = False
        self._sender: asyncio.Task[Any] | None = None
        """gRPC's task that takes the requests; it would wait for the next one though the call has failed."""
        # In the call's metadata for Triton's own spans, with the request that opens a stream for token2wav's.
        self._trace = trace_headers()
        self._responses: Any = stub.ModelStreamInfer(
            self._requests(), timeout=timeout_s, metadata=tuple(self._trace.items())
        )

    def send(
        self,
        operation: Operation,
        request_id: str,
        tensors: Mapping[str, Any],
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Queue a request; `tensors` maps input names to numpy arrays, or to bytes: a BYTES tensor of one element."""
        request = messages.ModelInferRequest(model_name=TOKEN2WAV_MODEL, id=request_id)
        _add(request, "operation", operation.value.encode())
        for name, value in tensors.items():
            _add(request, name, value)
        trace = self._trace if operation is Operation.OPEN else {}
        for key, text in {**trace, **parameters}.items():
            request.parameters[key].string_param = text
        self._outbox.put_nowait(request)

    def end_requests(self) -> None:
        """Say that no more requests will come."""
        self._outbox.put_nowait(None)

    async def finish(self, deadline_s: float) -> None:
        """Let the server end the call, then drop it.

        A cancel that overtakes an answer's FINAL flag makes Triton 2.51 keep the request for ever, so a call whose
        answers have all come is ended from this side and read to its end first.
        """
        self.end_requests()
        try:
            with contextlib.suppress(errors.GatewayError, asyncio.TimeoutError):
                async with timeout(deadline_s):
                    while await self.next_result() is not None:
                        pass
        finally:
            self.close()

    def cancel(self) -> None:
        """Cancel everything that travels on this call; does nothing after its end."""
        if self._responses is not None:
            self._responses.cancel()

    def close(self) -> None:
        """Cancel the call and let go of it; nothing can be read any more.

        gRPC closes a connection no sooner than the last of its calls is forgotten. Errors are kept for a while and have
        tracebacks, which lead back to here: without this a hanging connection would stay until a garbage collection.
        """
        self.cancel()
        self.end_requests()
        if self._sender is not None:
            cancel(self._sender)
        self._responses = self._sender = None

    async def next_result(self) -> tuple[str, Tensors] | None:
        """Return the next response's id and tensors, or None when the server has ended the call.

        Raises:
            GatewayError: an error response, or the call broke.
        """
        if self._responses is None:
            return None
        try:
            # NOTE: of a call that was cancelled `read` raises a cancellation, which is nobody's.
            response = await anext(aiter(self._responses))
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # their variables hold the call; see `close`
            if isinstance(error, StopAsyncIteration):
                return None
            if not isinstance(error, grpc.RpcError):
                raise
            # gRPC answers a cancellation of the reader with this error too, if the call has failed before.
            raise_if_cancelled()
            raise self._from_rpc(error) from error
        if response.error_message:
            raise _from_wire(response.error_message)
        self._is_answered = True
        return response.infer_response.id, _tensors(response.infer_response)

    async def first_result(self, wanted: str, deadline_s: float, patience: Patience) -> Tensors:
        """Return the tensors of the first response that has the wanted one; `patience` is that with the server.

        Raises:
            Token2WavDeadlineError: it did not come in time; the call is cancelled.
            GatewayError: an error response, or the call broke.
        """
        try:
            async with patient_timeout(deadline_s, patience.begin(deadline_s)):
                while (result := await self.next_result()) is not None:
                    if wanted in result[1]:
                        return result[1]
        except asyncio.TimeoutError as error:
            got = f"token2wav at {self._url} did not answer within {deadline_s} s"
            raise errors.Token2WavDeadlineError(f"{got}; it is overloaded or stuck: see its log") from error
        raise errors.Token2WavProtocolError(
            f"token2wav at {self._url} ended without {wanted!r}; gateway and server are of different versions"
        )

    def interrupted(self, what: str) -> errors.Token2WavInterruptedError:
        """Make the error of a call that ended too early."""
        return errors.Token2WavInterruptedError(f"token2wav at {self._url}: {what}; try again, and see its log")

    def _from_rpc(self, error: Any) -> errors.GatewayError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.Token2WavDeadlineError(f"token2wav at {self._url}: the call passed its deadline ({details})")
        if code is grpc.StatusCode.UNAVAILABLE and not self._is_answered:
            got = f"token2wav at {self._url} can't be reached ({details})"
            return errors.Token2WavUnavailableError(f"{got}; start it or correct the token2wav URL")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return self.interrupted(f"the connection broke in mid-stream ({details})")
        return errors.Token2WavFailedError(f"token2wav at {self._url} failed: {code.name}: {details}")

    async def _requests(self) -> AsyncIterator[Any]:
        self._sender = asyncio.current_task()
        while (request := await self._outbox.get()) is not None:
            yield request


def text_of(value: Any) -> str:
    """Return the text of a BYTES tensor of one element."""
    return bytes(value.ravel()[0]).decode()


_ERROR_CLASSES: dict[ErrorCode, type[errors.GatewayError]] = {
    ErrorCode.INVALID_REQUEST: errors.Token2WavRejectedError,
    ErrorCode.INVALID_PROMPT: errors.InvalidVoicePromptError,
    ErrorCode.INVALID_CHUNK: errors.Token2WavRejectedError,
    ErrorCode.INVALID_VOICE_FILE: errors.VoiceFileError,
    ErrorCode.VOICE_MODEL_MISMATCH: errors.VoiceOutdatedError,
    ErrorCode.VOICE_NOT_FOUND: errors.VoiceEvictedError,
    ErrorCode.STREAM_NOT_FOUND: errors.StreamLostError,
    ErrorCode.RESOURCE_EXHAUSTED: errors.Token2WavBusyError,
    ErrorCode.UNAVAILABLE: errors.Token2WavStoppingError,
    ErrorCode.CANCELLED: errors.StreamLostError,
    ErrorCode.INTERNAL: errors.Token2WavFailedError,
}


def _from_wire(text: str) -> errors.GatewayError:
    code, message = decode_error(text)
    return _ERROR_CLASSES[code](f"token2wav: {message}")


def _add(request: Any, name: str, value: bytes | npt.NDArray[Any]) -> None:
    """Add an input: numbers, or BYTES of one element."""
    if isinstance(value, bytes):
        request.inputs.add(name=name, datatype=_BYTES, shape=(1,))
        request.raw_input_contents.append(_LENGTH.pack(len(value)) + value)
    else:
        request.inputs.add(name=name, datatype=_NAMES[value.dtype], shape=value.shape)
        request.raw_input_contents.append(value.tobytes())


def _tensors(response: Any) -> Tensors:
    """Return the outputs of a ModelInferResponse with raw contents, every one in its shape."""
    tensors: Tensors = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.datatype == _BYTES:
            tensors[output.name] = np.array(list(_texts(raw)), np.object_).reshape(tuple(output.shape))
        else:
            tensors[output.name] = np.frombuffer(raw, _DTYPES[output.datatype]).reshape(tuple(output.shape))
    return tensors


def _texts(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        yield raw[at - length : at]
