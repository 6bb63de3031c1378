"""Runs `trtllm-build` on a checkpoint, shows how far it is, and says clearly why it failed.

Written to the documented interface of TensorRT-LLM 1.2.1, the last release that builds engines; not run here.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from llm_service.adapters import TRTLLM_ENGINE_CLASS, TRTLLM_ENGINE_FILE
from llm_service.backends import require_program
from llm_service.errors import BuildError, CheckpointError, LLMConfigError

logger = logging.getLogger(__name__)

PROGRAM = "trtllm-build"
INSTALL = (
    "install TensorRT-LLM 1.2.1 (pip install tensorrt_llm==1.2.1; later releases build no engines) or run in the image "
    "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
)
CONFIG_FILE = "config.json"
SHOWN_LINES = 25  # of the log, in an error
SHOWN_CHARACTERS = 70  # of the latest line, beside the progress


@dataclass(frozen=True)
class BuildLimits:
    """What an engine is built for."""

    max_batch_size: int = 64  # requests
    max_num_tokens: int = 32768  # tokens of one step
    max_seq_len: int | None = None  # tokens, prompt plus answer; None: the model's own limit

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_num_tokens < self.max_batch_size:
            raise LLMConfigError(f"got {self}; expected max_batch_size of 1 or more and max_num_tokens no less than it")


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
    logger.info("running %s", shlex.join(command))
    status, tail = _run(command, log_path)
    ended = f"the end of {log_path}:\n" + "\n".join(tail)
    if status != 0:
        raise BuildError(f"{PROGRAM} exited with status {status}; {ended}")
    if not list(engine_dir.glob("*.engine")):
        raise BuildError(f"{PROGRAM} wrote no engine; {ended}")


def _run(command: list[str], log_path: Path) -> tuple[int, list[str]]:
    """Run a command, its output to a log and the latest line beside a clock; return status and last lines."""
    tail: deque[str] = deque(maxlen=SHOWN_LINES)
    pipe, no_input = subprocess.PIPE, subprocess.DEVNULL
    with (
        log_path.open("w", encoding="utf-8") as log,
        tqdm(desc=PROGRAM, unit=" lines") as progress,
        subprocess.Popen(command, stdin=no_input, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process,
    ):
        try:
            for line in process.stdout or ():
                log.write(line)
                log.flush()
                tail.append(line.rstrip())
                progress.set_postfix_str(line.strip()[-SHOWN_CHARACTERS:], refresh=False)
                progress.update()
            return process.wait(), list(tail)
        finally:
            process.kill()  # after an interrupt; harmless when it has ended


def _dtype(checkpoint_dir: Path) -> str:
    path = checkpoint_dir / CONFIG_FILE
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["dtype"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise CheckpointError(f"{checkpoint_dir} is no TensorRT-LLM checkpoint: no dtype in {path}") from err
