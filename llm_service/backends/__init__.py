"""The engines that can serve the speech-token LLM, behind one HTTP contract, and which of them this host takes.

`--backend auto`, and `--llm-backend auto` of the commands that start services: on a GPU trtllm-serve where it is
installed and starts, and can have the checkpoint without loss; else our own engine. Without one: our own engine on the
CPU. vLLM is taken by name only.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from llm_service.backends.base import Backend, Capabilities, EmbeddedBackend, is_engine
from llm_service.backends.trtllm import PROGRAM, TrtllmBackend
from llm_service.backends.vllm import VllmBackend
from llm_service.config import LLMBackend
from llm_service.huggingface_layout import has_speech_form

__all__ = [
    "AUTO",
    "GPU_DEVICE",
    "Backend",
    "Capabilities",
    "EmbeddedBackend",
    "TrtllmBackend",
    "VllmBackend",
    "choose_backend",
    "has_gpu",
    "succeeds",
]

logger = logging.getLogger(__name__)

AUTO = "auto"
GPU_DEVICE = "cuda"
PROBE_TIMEOUT_S = 180.0
"""Seconds for a probe: TensorRT-LLM takes tens of seconds to import on a cold disk."""
SHOWN_BYTES = 300
_GPU_COMMAND = ("nvidia-smi", "-L")
_PROBE_COMMAND = (PROGRAM, "--help")
_CPU_BUILD = "+cpu"

Succeeds = Callable[[Sequence[str]], bool]


def succeeds(command: Sequence[str]) -> bool:
    """Tell whether a program is there and ends well."""
    if shutil.which(command[0]) is None:
        return False
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        logger.warning("%s can't be used: %s", command[0], err)
        return False
    if done.returncode:
        complaint = done.stderr[-SHOWN_BYTES:].decode("utf-8", "replace")
        logger.warning("%s ends with status %d: %s", command[0], done.returncode, complaint)
    return done.returncode == 0


def has_gpu(probe: Succeeds = succeeds) -> bool:
    """Tell whether the driver lists a GPU and torch is not its build for CPUs alone."""
    try:
        is_cpu_build = metadata.version("torch").endswith(_CPU_BUILD)
    except metadata.PackageNotFoundError:
        is_cpu_build = False  # trtllm-serve or vllm may be there all the same
    return not is_cpu_build and probe(_GPU_COMMAND)


def choose_backend(model_dir: Path, on_gpu: bool, probe: Succeeds = succeeds, can_convert: bool = False) -> LLMBackend:
    """Return the backend for a checkpoint on this host.

    Args:
        model_dir: the LLM; trtllm-serve keeps its head's bias only in the converted form, or as a built engine.
        on_gpu: whether it is to run on one.
        probe: tells whether a command works.
        can_convert: whether the caller converts a stock LLM before it is served.
    """
    if not on_gpu:
        return LLMBackend.EMBEDDED
    if not (can_convert or has_speech_form(model_dir) or is_engine(model_dir)):
        return LLMBackend.EMBEDDED
    return LLMBackend.TRTLLM if probe(_PROBE_COMMAND) else LLMBackend.EMBEDDED
