"""Compiles every kernel of a step and of a voice's prompt, at the demo voice's sizes, for a GPU that need not be there.

`python -m tests.token2wav_service.runtime.compile_kernels` prints the kernels' names. Launches compile and run nothing.
The interpreter, which the other tests use, takes what the compiler refuses.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from demo_voice.train.sizes import DEMO
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.runtime.kernels import attention_ops, vocoder_ops
from token2wav_service.runtime.slots.fused_solver import FusedSolver
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.prompt_flow import PromptFlow
from token2wav_service.runtime.slots.slot_runner import SlotRunner

HOPPER = GPUTarget("cuda", 90, 32)
SIZES = PoolSizes(streams=2, estimator_recent=50, conformer_recent=50, max_prompt_frames=64)


def compile_instead_of_running() -> list[str]:
    """Have launches compile only; returns the list that they write their kernels' names to."""
    names: list[str] = []
    launch: Any = JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> None:
        launch(self, *args, **{**options, "warmup": True})
        names.append(self.__name__)

    # What the compiler asks of a GPU's driver.
    there = {"get_current_target": lambda: HOPPER, "get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
    driver.set_active(SimpleNamespace(**there))
    JITFunction.run = compile_only
    vocoder_ops._block = lambda x, size: size
    return names


def _as_given(splits: int, x: Tensor, blocks: int) -> int:
    return splits


@torch.inference_mode()
def main() -> None:
    """Go through a step of one and of two streams, and a prompt."""
    names = compile_instead_of_running()
    flow, hift = Flow(DEMO.flow).eval().to(torch.float16), fold_weight_norm(HiFT(DEMO.hift).eval())
    policy = SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1)
    runner = SlotRunner(flow, hift, policy, SIZES, (1, 2), (6,))
    for streams in (1, 2):
        attention_ops.choose_splits = partial(_as_given, streams)
        runner.program(streams, 6, runner.flow.prompt_sizes()[0])._compute()
    assert isinstance(runner.flow.solver, FusedSolver)
    prompts = PromptFlow(flow, runner.flow.solver, SIZES.max_prompt_frames)
    prompts.warm_up()
    for program in prompts._programs.values():
        program.run()
    print(*sorted(set(names)), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
