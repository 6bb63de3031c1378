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


def _mel(frames: int, seed: int) -> Tensor:
    return torch.randn(frames, 80, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_prompts_of_any_length_leave_what_the_plain_modules_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded and not, one after another in the same buffers; mel longer and shorter than the tokens.

    The second has four tokens of mel, and twice as many places.
    """
    monkeypatch.setattr(prompt_flow, "SHORTEST_TOKENS", 8)
    flow = make_flow()
    plain = StreamFlow(flow, POLICY)
    fused = PromptFlow(plain, DiTSolver(flow.decoder, POLICY.ode_steps, torch.float32), LONGEST_FRAMES)
    assert fused.buckets == (8, 12)
    for seed, (tokens, frames) in enumerate([(12, 25), (5, 9)]):
        inputs = random_tokens(tokens, seed), _mel(frames, seed), random_speaker(seed)
        voice, plain_voice = fused.prepare_voice(*inputs), plain.prepare_voice(*inputs)
        assert (len(voice.mel), voice.num_bytes) == (len(plain_voice.mel), plain_voice.num_bytes)
        got, expected = (plain.begin(each, 15) for each in (voice, plain_voice))
        places = [(each.prompt_tokens, each.first_token, each.end_token) for each in (got, expected)]
        assert places[0] == places[1]
        assert got.caches.keys() == expected.caches.keys()
        for name, wanted in expected.caches.items():
            assert got.caches[name].shape == wanted.shape, name
            assert snr_db(got.caches[name], wanted) >= MIN_SNR_DB, name
            assert not name.endswith("_kv") or got.caches[name].is_contiguous()
        assert list(got.labels) == list(expected.labels)


@pytest.mark.parametrize("longest", [3, 64, 65, 450])
def test_the_longest_prompt_has_a_length_and_none_is_padded_by_much(longest: int) -> None:
    sizes = prompt_buckets(longest)
    assert sizes[-1] == longest
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 9
    assert all(larger <= 1.5 * size for size, larger in pairwise(sizes))
