"""One request: its tensors, read and checked once at the service's edge, and its way back to the caller.

Any number of responses, then exactly one FINAL flag. Knows tensor shapes and dtypes; knows nothing of what the values
mean to the engine.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from token2wav_service.contract import ErrorCode, encode_error
from token2wav_service.errors import InvalidRequestError, StreamAbortedError, Token2WavError

logger = logging.getLogger(__name__)

PbUtils = Any
"""The module `triton_python_backend_utils`, which exists only inside Triton's model processes."""
Tensor = npt.NDArray[Any]
_SHM_DIR = "/dev/shm"
_SHM_MARGIN_BYTES = 4 * 1024 * 1024
"""Room in shared memory beyond a response itself, below which a response is sent apart from its FINAL flag."""


def free_shm_bytes() -> int:
    """Return the free room of the file system that carries responses to the server."""
    try:
        room = os.statvfs(_SHM_DIR)
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


class Responder:
    """Thread-safe face of a decoupled response sender; after the FINAL flag everything is ignored."""

    def __init__(
        self,
        pb_utils: PbUtils,
        request: Any,
        on_failure: Callable[[ErrorCode], None] | None = None,
        free_bytes: Callable[[], int] = free_shm_bytes,
    ) -> None:
        """Take the sender of a request.

        Args:
            on_failure: told the code of an error that goes out, and INTERNAL for a response that could not.
            free_bytes: room for responses.
        """
        self._pb_utils = pb_utils
        self._on_failure = on_failure
        self._free_bytes = free_bytes
        # NOTE: dropped with the FINAL flag: while a sender lives, Triton can't unload the model.
        self._sender: Any = request.get_response_sender()
        self._lock = threading.Lock()

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send one response; more may follow.

        Raises:
            Exception: whatever Triton says; the request is still unanswered.
        """
        with self._lock:
            if self._sender is not None:
                self._sender.send(make_response(self._pb_utils, tensors))

    def finish(self, tensors: Mapping[str, Tensor] | None = None) -> bool:
        """Send the FINAL flag, with `tensors` if given; never raises.

        Returns:
            False if Triton didn't take them: the caller got an error instead, or nothing if that failed too.
        """
        size = sum(tensor.nbytes for tensor in (tensors or {}).values())
        try:
            if size and self._free_bytes() < size + _SHM_MARGIN_BYTES:
                # NOTE: Triton closes a sender before it finds no room, so that after a failed FINAL nothing can be
                # sent. Where room is short, the data goes first; elsewhere see the note in token2wav_model.py.
                self.send(tensors or {})
                tensors = None
            self._send_final(None if tensors is None else make_response(self._pb_utils, tensors))
        except Exception as err:
            logger.exception("a response of %d bytes could not be sent", size)
            self._count(ErrorCode.INTERNAL)
            self.fail_with(encode_error(ErrorCode.INTERNAL, f"the response could not be sent: {err}"))
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Send an error response with the FINAL flag; never raises.

        Anything but a `Token2WavError` is logged and INTERNAL.
        """
        self._count(error.code if isinstance(error, Token2WavError) else ErrorCode.INTERNAL)
        self.fail_with(error_text(error))

    def fail_with(self, message: str) -> None:
        """Send an already encoded error with the FINAL flag, or without room for it the flag alone; never raises."""
        for make in (lambda: error_response(self._pb_utils, message), lambda: None):
            try:
                self._send_final(make())
                return
            except Exception:
                logger.exception("a request could not be ended with an error")
        with self._lock:
            self._sender = None

    def is_cancelled(self) -> bool:
        """Say whether the caller has left or given up; False once finished."""
        with self._lock:
            return self._sender is not None and bool(self._sender.is_cancelled())

    def _count(self, code: ErrorCode) -> None:
        with self._lock:
            is_open = self._sender is not None
        if is_open and self._on_failure is not None:
            self._on_failure(code)

    def _send_final(self, response: Any) -> None:
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        with self._lock:
            if self._sender is not None:
                self._sender.send(*(() if response is None else (response,)), flags=flags)
                self._sender = None


def make_response(pb_utils: PbUtils, tensors: Mapping[str, Tensor]) -> Any:
    """Build a Triton response of named output tensors."""
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, value) for name, value in tensors.items()])


def error_response(pb_utils: PbUtils, message: str) -> Any:
    """Build a Triton response that carries nothing but an error."""
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(message))


def error_text(error: BaseException) -> str:
    """Write an exception for the wire; logs the unexpected ones with their trace."""
    if isinstance(error, Token2WavError):
        return encode_error(error.code, str(error))
    logger.error("unexpected %s", type(error).__name__, exc_info=error)
    return encode_error(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}; see the server's log")


def text_tensor(text: str) -> Tensor:
    """Return `text` as a BYTES tensor of shape [1]."""
    return np.array([text.encode("utf-8")], dtype=np.object_)


_MATRIX_DIMENSIONS = 2
_WIRE_NAMES = {"object": "BYTES", "float16": "FP16", "float32": "FP32"}
"""Triton's names of the types whose numpy name in capitals is another."""


class RequestInputs:
    """Typed access to a request's input tensors; every method raises InvalidRequestError on a wrong tensor."""

    def __init__(self, pb_utils: PbUtils, request: Any) -> None:
        self._pb_utils = pb_utils
        self._request = request

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def parameter(self, name: str) -> str | None:
        """Return a request parameter that is text; None if there is none."""
        value = json.loads(self._request.parameters() or "{}").get(name)
        return value if isinstance(value, str) else None

    def raw_bytes(self, name: str) -> bytes:
        """Return the single element of a BYTES tensor."""
        value = self._single(name, np.object_)
        if not isinstance(value, bytes):
            raise InvalidRequestError(f"{name} holds a {type(value).__name__}: expected bytes")
        return value

    def text(self, name: str) -> str:
        """Return the single element of a BYTES tensor as text."""
        data = self.raw_bytes(name)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise InvalidRequestError(f"{name} is not UTF-8 ({err.reason} at byte {err.start}): encode it so") from err

    def integer(self, name: str, dtype: type[np.int32] | type[np.int64]) -> int:
        return int(self._single(name, dtype))

    def scalar(self, name: str, dtype: type[np.float32] | type[np.uint64]) -> float:
        """Return the single element of a tensor of another type of number."""
        value: float = self._single(name, dtype)
        return value

    def boolean(self, name: str) -> bool:
        return bool(self._single(name, np.bool_))

    def integers(self, name: str) -> npt.NDArray[np.int32]:
        """Return an INT32 tensor of any shape, flattened."""
        return self._array(name, np.int32).reshape(-1)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return an FP32 tensor of any shape, flattened; every value is finite."""
        return self._finite(name, np.float32).reshape(-1)

    def halves(self, name: str) -> npt.NDArray[np.float32]:
        """Return an FP16 tensor of any shape, flattened, as float32; every value is finite."""
        return self._finite(name, np.float16).astype(np.float32).reshape(-1)

    def float_rows(self, name: str) -> npt.NDArray[np.float32]:
        """Return an FP32 tensor of shape [B, N], N at least 1; every value is finite."""
        values = self._finite(name, np.float32)
        if values.ndim != _MATRIX_DIMENSIONS or values.size == 0:
            raise InvalidRequestError(f"{name} has shape {list(values.shape)}: expected [batch, samples]")
        return values

    def _finite(self, name: str, dtype: type[np.generic]) -> Tensor:
        values = self._array(name, dtype)
        if not bool(np.isfinite(values).all()):
            raise InvalidRequestError(f"{name} holds NaN or infinity: send finite values")
        return values

    def _single(self, name: str, dtype: type[np.generic]) -> Any:
        array = self._array(name, dtype)
        if array.size != 1:
            raise InvalidRequestError(f"{name} has shape {list(array.shape)}: expected exactly one element")
        return array.reshape(-1)[0]

    def _array(self, name: str, dtype: type[np.generic]) -> Tensor:
        tensor = self._find(name)
        if tensor is None:
            raise InvalidRequestError(f"the tensor {name} is missing: this operation needs it")
        array: Tensor = tensor.as_numpy()
        if array.dtype != dtype:
            expected = np.dtype(dtype).name
            raise InvalidRequestError(
                f"{name} has dtype {array.dtype}: expected {_WIRE_NAMES.get(expected, expected.upper())}"
            )
        return array

    def _find(self, name: str) -> Any:
        return self._pb_utils.get_input_tensor_by_name(self._request, name)


class OneByOneModel:
    """A Triton model that is not decoupled: answers each request of a batch alone, an error included."""

    def __init__(self, pb_utils: PbUtils, answer: Callable[[RequestInputs, str], dict[str, Tensor]]) -> None:
        """Take what makes the response's tensors of a request's tensors and its id."""
        self._pb_utils = pb_utils
        self._answer = answer

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request of a batch."""
        return [self._respond(request) for request in requests]

    def finalize(self) -> None:
        """End: nothing is open."""

    def _respond(self, request: Any) -> Any:
        try:
            if request.is_cancelled():
                raise StreamAbortedError("the request was cancelled before it was served")
            tensors = self._answer(RequestInputs(self._pb_utils, request), request.request_id())
            return make_response(self._pb_utils, tensors)
        except Exception as err:
            return error_response(self._pb_utils, error_text(err))
