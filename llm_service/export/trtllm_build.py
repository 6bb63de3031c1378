"""Runs `trtllm-build` on a checkpoint, and says clearly why it failed.

Written to the documented interface of TensorRT-LLM 1.2.1, the last release that builds engines; not run here.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from llm_service.adapters import TRTLLM_ENGINE_CLASS, TRTLLM_ENGINE_FILE
from llm_service.backends import require_program
from llm_service.errors import BuildError, CheckpointError

logger = logging.getLogger(__name__)

PROGRAM = "trtllm-build"
INSTALL = (
    "install TensorRT-LLM 1.2.1 (pip install tensorrt_llm==1.2.1; later releases build no engines) or run in the image "
    "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
)
CONFIG_FILE = "config.json"
SHOWN_LINES = 25  # of the log, in an error


@dataclass(frozen=True)
class BuildLimits:
    """What an engine is built for."""

    max_batch_size: int = 64  # requests
    max_num_tokens: int = 32768  # tokens of one step
    max_seq_len: int | None = None  # tokens, prompt plus answer; None: the model's own limit


def build_command(checkpoint_dir: Path, engine_dir: Path, limits: BuildLimits) -> list[str]:
    """Return the command line. Ranks are built one after another: `--workers` can't pass on a model class.

    Raises:
        CheckpointError: `checkpoint_dir` is no TensorRT-LLM checkpoint.
    """
    command = [PROGRAM, "--checkpoint_dir", str(checkpoint_dir), "--output_dir", str(engine_dir)]
    command += ["--model_cls_file", str(TRTLLM_ENGINE_FILE), "--model_cls_name", TRTLLM_ENGINE_CLASS]
    command += ["--max_batch_size", str(limits.max_batch_size), "--max_num_tokens", str(limits.max_num_tokens)]
    command += ["--gemm_plugin", _dtype(checkpoint_dir)]
    if limits.max_seq_len is not None:
        command += ["--max_seq_len", str(limits.max_seq_len)]
    return command


def build_engine(checkpoint_dir: Path, engine_dir: Path, limits: BuildLimits, log_path: Path) -> None:
    """Build an engine into an empty directory; a log keeps what the builder said.

    Raises:
        BackendUnavailableError: trtllm-build is not installed.
        CheckpointError: `checkpoint_dir` is no TensorRT-LLM checkpoint.
        BuildError: it failed; the message ends with its last lines.
    """
    require_program(PROGRAM, INSTALL)
    command = build_command(checkpoint_dir, engine_dir, limits)
    logger.info("running %s; it logs to %s", shlex.join(command), log_path)
    with log_path.open("wb") as log:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if status or not list(engine_dir.glob("*.engine")):
        got = f"exited with status {status}" if status else "wrote no engine"
        tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
        raise BuildError("\n".join([f"{PROGRAM} {got}; the end of {log_path}:", *tail]))


def _dtype(checkpoint_dir: Path) -> str:
    path = checkpoint_dir / CONFIG_FILE
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["dtype"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise CheckpointError(f"{checkpoint_dir} is no TensorRT-LLM checkpoint: no dtype in {path}") from err
