"""One way to open an ONNX file on the CPU: quiet, with a bounded number of threads, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from servicekit.file_sums import FileSumsError, check_file
from token2wav_service.errors import CheckpointError

_ERRORS_ONLY = 3


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Load `path` for ONNX Runtime's CPU provider.

    Args:
        threads: CPU threads of one run, at least 1.

    Raises:
        CheckpointError: the file is missing, not the one that the checkpoint lists, or no ONNX model that this
            runtime can load.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; run `cosydit checkpoint verify` on its directory")
    check_weights(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime has no common base for its own exceptions; all of them mean the same here.
    except Exception as err:
        raise CheckpointError(f"{path} does not load in ONNX Runtime ({err}); download or make it again") from err


def check_weights(path: Path) -> None:
    """Compare a file with the checkpoint's list.

    Raises:
        CheckpointError: it is not the file that the checkpoint lists.
    """
    try:
        check_file(path)
    except FileSumsError as err:
        raise CheckpointError(str(err)) from err
