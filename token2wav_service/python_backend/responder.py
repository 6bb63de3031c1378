"""One request's way back to its caller: any number of responses, then exactly one FINAL flag.

Knows Triton's response sender; knows nothing of streams or audio.
"""

from __future__ import annotations

import logging
import os
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
            if self._sender is None:
                return
            if response is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(response, flags=flags)
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
