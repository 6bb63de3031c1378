"""Which runner an engine gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from token2wav_service.build import choose_runner
from token2wav_service.config import HistoryPolicy, NoiseSource, RunnerKind, SynthesisPolicy, Token2WavConfig


@pytest.mark.parametrize(
    ("device", "policy", "expected"),
    [
        pytest.param("cpu", SynthesisPolicy(), RunnerKind.TORCH, id="a CPU"),
        pytest.param("cuda", SynthesisPolicy(), RunnerKind.SLOTS, id="a GPU"),
        pytest.param("cuda:1", SynthesisPolicy(), RunnerKind.SLOTS, id="another GPU"),
        pytest.param("cuda", SynthesisPolicy(history=HistoryPolicy.UPSTREAM), RunnerKind.TORCH, id="upstream history"),
        pytest.param("cuda", SynthesisPolicy(noise=NoiseSource.UPSTREAM), RunnerKind.TORCH, id="upstream noise"),
    ],
)
def test_auto_takes_slots_on_a_gpu_unless_a_policy_needs_the_plain_modules(
    device: str, policy: SynthesisPolicy, expected: RunnerKind
) -> None:
    config = Token2WavConfig(Path("unused"), device=device, synthesis=policy)
    assert choose_runner(config) is expected


def test_a_named_runner_is_taken_as_it_is() -> None:
    assert choose_runner(Token2WavConfig(Path("unused"), runner=RunnerKind.SLOTS)) is RunnerKind.SLOTS
