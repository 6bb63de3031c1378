"""Reads and checks the tensors of one request, once, at the service's edge; and the model that answers one by one.

Knows tensor shapes and dtypes; knows nothing of what the values mean to the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from token2wav_service.errors import InvalidRequestError, StreamAbortedError
from token2wav_service.python_backend.responder import PbUtils, Tensor, error_response, error_text, make_response

_MATRIX_DIMENSIONS = 2


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
        value = self._single(name, np.dtype(np.object_), "BYTES")
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
        expected = np.dtype(dtype)
        return int(self._single(name, expected, expected.name.upper()))

    def scalar(self, name: str, dtype: type[np.float32] | type[np.uint64]) -> float:
        """Return the single element of a tensor of another type of number."""
        expected = np.dtype(dtype)
        value: float = self._single(name, expected, {"float32": "FP32"}.get(expected.name, expected.name.upper()))
        return value

    def boolean(self, name: str) -> bool:
        return bool(self._single(name, np.dtype(np.bool_), "BOOL"))

    def integers(self, name: str) -> npt.NDArray[np.int32]:
        """Return an INT32 tensor of any shape, flattened."""
        return self._array(name, np.dtype(np.int32), "INT32").reshape(-1)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return an FP32 tensor of any shape, flattened; every value is finite."""
        return self._finite(name).reshape(-1)

    def halves(self, name: str) -> npt.NDArray[np.float32]:
        """Return an FP16 tensor of any shape, flattened, as float32; every value is finite."""
        values: npt.NDArray[np.float32] = self._array(name, np.dtype(np.float16), "FP16").astype(np.float32)
        if not bool(np.isfinite(values).all()):
            raise InvalidRequestError(f"{name} holds NaN or infinity: send finite values")
        return values.reshape(-1)

    def float_rows(self, name: str) -> npt.NDArray[np.float32]:
        """Return an FP32 tensor of shape [B, N], N at least 1; every value is finite."""
        values = self._finite(name)
        if values.ndim != _MATRIX_DIMENSIONS or values.size == 0:
            raise InvalidRequestError(f"{name} has shape {list(values.shape)}: expected [batch, samples]")
        return values

    def _finite(self, name: str) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self._array(name, np.dtype(np.float32), "FP32")
        if not bool(np.isfinite(values).all()):
            raise InvalidRequestError(f"{name} holds NaN or infinity: send finite samples in +-1")
        return values

    def _single(self, name: str, dtype: np.dtype[Any], wire_name: str) -> Any:
        array = self._array(name, dtype, wire_name)
        if array.size != 1:
            raise InvalidRequestError(f"{name} has shape {list(array.shape)}: expected exactly one element")
        return array.reshape(-1)[0]

    def _array(self, name: str, dtype: np.dtype[Any], wire_name: str) -> npt.NDArray[Any]:
        tensor = self._find(name)
        if tensor is None:
            raise InvalidRequestError(f"the tensor {name} is missing: this operation needs it")
        array: npt.NDArray[Any] = tensor.as_numpy()
        if array.dtype != dtype:
            raise InvalidRequestError(f"{name} has dtype {array.dtype}: expected {wire_name}")
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
