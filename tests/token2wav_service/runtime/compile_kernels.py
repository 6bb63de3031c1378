"""Compiles every kernel of a step and of a voice's prompt, at the demo voice's sizes, for a GPU that need not be there.

`python -m tests.token2wav_service.runtime.compile_kernels ARCHITECTURE` (80, 90) prints the kernels' names.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.triton_compiler import compile_instead_of_running
from tests.workers import is_whole
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.config import DiTConfig, EncoderConfig, FlowConfig, HiFTConfig
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.runtime.kernels import attention_ops, vocoder_ops
from token2wav_service.runtime.slots.dit_solver import DiTSolver
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.prompt_flow import PromptFlow
from token2wav_service.runtime.slots.slot_runner import SlotRunner

FLOW = FlowConfig(
    input_size=192,
    encoder=EncoderConfig(
        input_size=192, output_size=192, num_blocks=2, num_up_blocks=2, attention_heads=4, linear_units=384
    ),
    estimator=DiTConfig(hidden_size=192, depth=2, num_heads=3, head_dim=64, mlp_ratio=3.0),
)
HIFT = HiFTConfig(base_channels=128, f0_cond_channels=128)
"""The demo voice's sizes, and two blocks of each kind: more compile nothing more."""
SIZES = PoolSizes(streams=2, estimator_recent=50, conformer_recent=50, max_prompt_frames=64)


def _as_given(splits: int, x: Tensor, blocks: int) -> int:
    return splits


def _on_gpu(choose: Any) -> Any:
    return lambda x, *sizes: choose(SimpleNamespace(is_cuda=True, dtype=x.dtype), *sizes)


@torch.inference_mode()
def main() -> None:
    """Go through a step of one stream and a prompt; in the nightly run also a step of two."""
    names = compile_instead_of_running(int(sys.argv[1]))
    # What is chosen by a tensor's device, as a GPU gets it: the interpreter's large tiles take the compiler minutes.
    for module, name in ((vocoder_ops, "_block"), (vocoder_ops, "choose_tiles"), (attention_ops, "_columns_at_once")):
        setattr(module, name, _on_gpu(getattr(module, name)))
    flow, hift = Flow(FLOW).eval().to(torch.float16), fold_weight_norm(HiFT(HIFT).eval())
    policy = SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1)
    runner = SlotRunner(flow, hift, policy, SIZES, (1, 2), (6,))
    for streams, splits in ((1, 1), (2, 2)) if is_whole() else ((1, 2),):
        attention_ops.choose_splits = partial(_as_given, splits)
        runner.program(streams, 6, runner.flow.solver.prompt_sizes[0])._compute()
    assert isinstance(runner.flow.solver, DiTSolver)
    prompts = PromptFlow(runner._plain, runner.flow.solver, SIZES.max_prompt_frames)
    for program in prompts._programs.values():
        program.run()
    print(*sorted(set(names)), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main()
