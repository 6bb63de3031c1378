"""One request's way back to its caller: any number of responses, then exactly one FINAL flag.

Knows Triton's response sender; knows nothing of streams or audio.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from token2wav_service.contract import ErrorCode, encode_error
from token2wav_service.errors import Token2WavError

logger = logging.getLogger(__name__)

PbUtils = Any
"""The module `triton_python_backend_utils`, which exists only inside Triton's model processes."""
Tensor = npt.NDArray[Any]


class Responder:
    """Thread-safe face of a decoupled response sender; after the FINAL flag everything is ignored."""

    def __init__(self, pb_utils: PbUtils, request: Any, on_failure: Callable[[ErrorCode], None] | None = None) -> None:
        """Take the sender of a request; `on_failure` is told the code of an error that goes out."""
        self._pb_utils = pb_utils
        self._on_failure = on_failure
        # NOTE: dropped with the FINAL flag: while a sender lives, Triton can't unload the model.
        self._sender: Any = request.get_response_sender()
        self._lock = threading.Lock()

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send one response; more may follow."""
        with self._lock:
            if self._sender is not None:
                self._sender.send(make_response(self._pb_utils, tensors))

    def finish(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Send the FINAL flag, with `tensors` if given."""
        response = None if tensors is None else make_response(self._pb_utils, tensors)
        self._send_final(response)

    def fail(self, error: BaseException) -> None:
        """Send an error response with the FINAL flag; anything but a `Token2WavError` is logged and INTERNAL."""
        self._count(error.code if isinstance(error, Token2WavError) else ErrorCode.INTERNAL)
        self.fail_with(error_text(error))

    def fail_with(self, message: str) -> None:
        """Send an already encoded error with the FINAL flag."""
        self._send_final(error_response(self._pb_utils, message))

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
            sender, self._sender = self._sender, None
            if sender is None:
                return
            if response is None:
                sender.send(flags=flags)
            else:
                sender.send(response, flags=flags)


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
