"""A voice's prompt on the fused kernels against the plain modules, by Triton's interpreter."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.token2wav_service.streaming.flow_factory import make_flow, random_speaker, random_tokens
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.replay.vectors import snr_db
from token2wav_service.runtime.slots import prompt_flow
from token2wav_service.runtime.slots.dit_solver import DiTSolver
from token2wav_service.runtime.slots.prompt_flow import PromptFlow, prompt_buckets

POLICY = SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=1)
LONGEST_FRAMES = 24
MIN_SNR_DB = 90.0
"""Of float32 against float32 in another order."""
KEPT = ("token_kv", "frame_kv", "lookahead_tail", "upsample_tail", "solver_kv", "solver_tail")


def _mel(frames: int, seed: int) -> Tensor:
    return torch.randn(frames, 80, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_prompts_of_any_length_leave_what_the_plain_modules_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded and not, one after another in the same buffers; mel longer and shorter than the tokens.

    The second has four tokens of mel, and twice as many places.
    """
    monkeypatch.setattr(prompt_flow, "SHORTEST_TOKENS", 8)
    flow = make_flow()
    fused = PromptFlow(flow, DiTSolver(flow.decoder, POLICY.ode_steps, torch.float32), LONGEST_FRAMES)
    plain = StreamFlow(flow, POLICY)
    assert fused.buckets == (8, 12)
    for seed, (tokens, frames) in enumerate([(12, 25), (5, 9)]):
        inputs = random_tokens(tokens, seed), _mel(frames, seed), random_speaker(seed)
        got, expected = fused.prepare_voice(*inputs), plain.prepare_voice(*inputs)
        assert (got.prompt_frames, got.frames) == (expected.prompt_frames, expected.frames)
        for name in KEPT:
            made, wanted = getattr(got, name), getattr(expected, name)
            assert made.shape == wanted.shape, name
            assert snr_db(made, wanted) >= MIN_SNR_DB, name
        assert list(got.solver_labels) == list(expected.solver_labels)
        assert got.solver_kv.is_contiguous()
        assert got.token_kv.is_contiguous()
        assert got.frame_kv.is_contiguous()


@pytest.mark.parametrize("longest", [3, 64, 65, 450])
def test_the_longest_prompt_has_a_length_and_none_is_padded_by_much(longest: int) -> None:
    sizes = prompt_buckets(longest)
    assert sizes[-1] == longest
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 9
    assert all(larger <= 1.5 * size for size, larger in pairwise(sizes))
