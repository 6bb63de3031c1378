"""A cost model for tests: round figures of no GPU in particular."""

from __future__ import annotations

from lab.simulate.compute import Slowdown
from lab.simulate.costs import CostModel, GatewayCost, LLMCost, StepCost, Token2WavCost

COSTS = CostModel(
    gpu="none",
    llm=LLMCost(0.001, 0.0001, 0.002, 0.00002, 0.001, 0.009, 0.00001, step_spread=0.0),
    token2wav=Token2WavCost(
        StepCost(0.012, 0.0001, 0.00003), open_s=0.003, push_s=0.001, answer_s=0.0003, step_spread=0.0
    ),
    gateway=GatewayCost(0.003, 0.0001, 0.0005, 0.01),
    llm_slowdown=Slowdown(0.3, 0.3),
    token2wav_slowdown=Slowdown(0.3, 0.1),
)
