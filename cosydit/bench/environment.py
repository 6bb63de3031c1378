"""Describes where a figure was measured: machine, software, arguments. A number without this is not published."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "cosydit",
    "torch",
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "transformers",
    "tritonclient",
    "nvidia-pytriton",
    "grpcio",
    "aiohttp",
    "httpx",
    "soundfile",
    "vllm",
    "tensorrt-llm",
)
_COMMAND_TIMEOUT_S = 10.0
_MIB = 1024 * 1024


def describe_environment(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return machine, packages, commit and arguments, ready for JSON. What can't be found is None or left out."""
    return {
        "date_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_mib": _memory_mib(),
        "gpus": _gpus(),
        "packages": _packages(),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_is_modified": _is_modified(),
        "arguments": {name: _plain(value) for name, value in sorted(arguments.items())},
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory_mib() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    except (ValueError, OSError):
        return None


def _gpus() -> list[str]:
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    answer = _output(["nvidia-smi", *query])
    return answer.splitlines() if answer else []


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _is_modified() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _git(*arguments: str) -> str | None:
    return _output(["git", "-C", str(Path(__file__).parent), *arguments])


def _output(command: Sequence[str]) -> str | None:
    """Return what a command prints; None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
