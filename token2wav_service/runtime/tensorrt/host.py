"""Looks at this machine's GPU and TensorRT. Loads no library, so it is quick and works where they are broken."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from token2wav_service.runtime.tensorrt.manifest import GpuHost

DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-bindings", "tensorrt-cu12-bindings")
"""Packages that bring the module `tensorrt`, the one that users name first."""
QUERY_TIMEOUT_S = 20.0

RunProgram = Callable[[Sequence[str]], str]
"""Returns a program's standard output; raises OSError or subprocess.SubprocessError."""


def probe_host() -> GpuHost:
    """Return what an engine built or loaded now has to fit."""
    architecture, name = probe_gpu(_run)
    return GpuHost(architecture, name, tensorrt_version())


def probe_gpu(run: RunProgram) -> tuple[str | None, str | None]:
    """Return architecture (such as sm90) and name of the first GPU that this process may use; None without one."""
    command = ["nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if visible:
        command.append(f"--id={visible}")
    try:
        lines = run(command).splitlines()
    except (OSError, subprocess.SubprocessError):
        return None, None
    capability, comma, name = lines[0].partition(",") if lines else ("", "", "")
    return (architecture_name(*capability.strip().split(".")), name.strip()) if comma else (None, None)


def architecture_name(major: int | str, minor: int | str) -> str:
    """Return a compute capability as compilers name it."""
    return f"sm{major}{minor}"


def tensorrt_version() -> str | None:
    """Return the version of the installed TensorRT; None without one."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _run(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(command[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)
    return done.stdout
