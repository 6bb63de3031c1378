"""Compiles every kernel of a prompt's step and of an answer's step for a GPU that need not be there.

`python -m tests.llm_service.embedded.compile_gpu_kernels LLM_DIR ARCHITECTURE` (80, 90) prints the kernels' names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.steps import PromptPiece
from llm_service.gpu.build import GpuEngineOptions, engine_of
from llm_service.gpu.weights import load_weights
from servicekit.clock import SystemClock
from tests.triton_compiler import compile_instead_of_running


def main() -> None:
    """Launch a step of answers, for few rows and for many, and one of a prompt."""
    names = compile_instead_of_running(int(sys.argv[2]))
    device = torch.device("cpu")
    weights = load_weights(Path(sys.argv[1]), device, torch.bfloat16)
    options = GpuEngineOptions(device, torch.bfloat16, 128, 128, 0.1, RepetitionGuard())
    runner = engine_of(weights, options, SystemClock())._runner
    for rows in (1, 128):
        runner.decode(np.zeros(rows, np.int32))
    runner.prompt([PromptPiece(0, 0, np.zeros(128, np.int32), ends=True, start=None)])
    print(*sorted(set(names)), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
