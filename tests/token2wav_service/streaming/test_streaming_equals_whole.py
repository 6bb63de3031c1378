"""One whole-utterance forward under a block mask equals the chunked run, for every policy and both histories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.token2wav_service.streaming.flow_factory import (
    make_flow,
    make_voice,
    random_speaker,
    random_tokens,
    run_stream,
    whole_mel,
    windows,
)
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.causal import AttentionPlan
from token2wav_service.models.flow.encoder import EncoderPlans
from token2wav_service.models.flow.flow_state import FlowState, Labels, collate, prompt_and_tail
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal
from token2wav_service.replay.vectors import FLOW_TOLERANCE

PROMPT_TOKENS = 20
SCHEDULES = {"equal": [15] * 50, "exponential": [15, 25, 50, 100], "time_based": [15, 15, 45, 30, 60, 15]}


def _block_plan(prompt: int, cuts: list[int], recent: int | None) -> AttentionPlan:
    """The encoder's mask and distances over [prompt | all frames], as the chunks saw them.

    Distances count kept columns: history is contiguous for a chunk even when the middle was dropped.
    """
    total = cuts[-1]
    mask = torch.zeros(total, prompt + total, dtype=torch.bool)
    relative = torch.zeros(total, prompt + total, dtype=torch.long)
    for start, end in zip([0, *cuts[:-1]], cuts, strict=True):
        seen: Labels = np.arange(prompt + start)
        if recent is not None:
            seen = prompt_and_tail(seen, prompt, recent)
        keys = torch.from_numpy(np.concatenate([seen, np.arange(prompt + start, prompt + end)]))
        mask[start:end, keys] = True
        query = torch.arange(len(seen), len(seen) + end - start)
        relative[start:end, keys] = query[:, None] - torch.arange(len(keys))[None]
    low, high = int(relative.min()), int(relative.max())
    return AttentionPlan(mask[None, None], relative, low, high)


def _solver_mask(prompt: int, cuts: list[int], states: list[FlowState]) -> Tensor:
    mask = torch.zeros(cuts[-1], prompt + cuts[-1], dtype=torch.bool)
    for start, end, state in zip([0, *cuts[:-1]], cuts, states, strict=False):
        mask[start:end, torch.from_numpy(state.labels)] = True
        mask[start:end, prompt + start : prompt + end] = True
    return mask[None, None]


def _noise(flow: StreamFlow, prompt: int, cuts: list[int], states: list[FlowState]) -> Tensor:
    if not flow.policy.is_reference:
        seed, start = torch.tensor([7]), torch.tensor([prompt])
        return counter_normal(seed, start, cuts[-1], 80, NoiseDomain.FLOW).transpose(1, 2)
    assert flow.noise_buffer is not None
    columns = [
        flow.noise_buffer[:, len(state.labels) : len(state.labels) + end - start]
        for start, end, state in zip([0, *cuts[:-1]], cuts, states, strict=False)
    ]
    return torch.cat(columns, 1)[None]


@pytest.mark.parametrize("is_reference", [False, True])
@pytest.mark.parametrize("history", HistoryPolicy)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_block_masked_whole_equals_chunked_run(schedule: str, history: HistoryPolicy, is_reference: bool) -> None:
    policy = SynthesisPolicy(history=history, is_reference=is_reference, ode_steps=3)
    policy = replace(policy, estimator_recent_frames=60, conformer_recent_frames=100)
    flow = StreamFlow(make_flow(), policy)
    voice, speaker, tokens = make_voice(flow, PROMPT_TOKENS, 1), random_speaker(1), random_tokens(173, 2)
    cuts = windows(SCHEDULES[schedule], len(tokens))
    mels, states = run_stream(flow, voice, tokens, cuts, speaker, seed=7)
    ends = np.cumsum([mel.shape[1] for mel in mels]).tolist()
    keeps_all = history is HistoryPolicy.AUTO
    plans = EncoderPlans(
        _block_plan(PROMPT_TOKENS, [end // 2 for end in ends], None if keeps_all else 50),
        _block_plan(2 * PROMPT_TOKENS, ends, None if keeps_all else 100),
    )
    noise_of_all = _noise(flow, 2 * PROMPT_TOKENS, ends, states)
    solver_mask = _solver_mask(2 * PROMPT_TOKENS, ends, states)
    past = collate([voice], flow.specs)
    whole = whole_mel(flow, tokens, speaker, noise_of_all, plans, solver_mask, past=past)
    torch.testing.assert_close(whole, torch.cat(mels, 1), atol=FLOW_TOLERANCE, rtol=0)
