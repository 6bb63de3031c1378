"""Has launches of kernels compile for a GPU that need not be there, and run nothing; for processes of their own.

The interpreter, which most tests use, takes what the compiler refuses.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tests import ROOT
from tests.workers import is_whole

ARCHITECTURES = ("80", "90") if is_whole() else ("90",)
"""Compute capabilities to compile for: an H100's, and in the nightly run an A100's, which takes as long again."""


def compile_instead_of_running(architecture: int) -> list[str]:
    """Have launches compile for an architecture only; returns the list that they write their kernels' names to."""
    names: list[str] = []
    launch: Any = JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> None:
        launch(self, *args, **{**options, "warmup": True})
        names.append(self.__name__)

    # What the compiler asks of a GPU's driver.
    target = GPUTarget("cuda", architecture, 32)
    there = {"get_current_target": lambda: target, "get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
    driver.set_active(SimpleNamespace(**there))
    JITFunction.run = compile_only
    return names


def compiled_kernels(module: str, *arguments: str, cache: Path) -> set[str]:
    """Run a module that compiles and prints its kernels' names; returns them."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", module, *arguments]
    compiled = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    return set(compiled.stdout.split())
