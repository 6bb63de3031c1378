"""What the choices of a past take at full size, and that a window is measured against the whole. No GPU is needed."""

from __future__ import annotations

import pytest
import torch

from cosydit.stack.gpu_presets import BLOCK_STREAM_BYTES
from lab import history_choices
from lab.history_choices import SIZES, Choice, choices, distances
from tests.token2wav_service.streaming.family_factory import COSYVOICE, make_block_flow
from token2wav_service.checkpoint.family import Family


def find(found: list[Choice], name: str, window: int | None) -> Choice:
    (choice,) = [each for each in found if each.name == name and each.window_blocks == window]
    return choice


@pytest.mark.parametrize("family", COSYVOICE)
def test_the_served_window_takes_what_was_measured_less_the_vocoder(family: Family) -> None:
    served = find(choices(family), "prompt shared and window", 2)
    assert served.stream_bytes == pytest.approx(BLOCK_STREAM_BYTES[family.value], rel=0.02)


@pytest.mark.parametrize("family", COSYVOICE)
def test_keys_and_values_are_as_many_as_the_specification_counts(family: Family) -> None:
    expected = {Family.COSYVOICE2: 2_293_760 + 14_336, Family.COSYVOICE3: 1_802_240}[family]
    found = choices(family)
    one, two = (find(found, "prompt shared and window", window).stream_bytes for window in (1, 2))
    assert (two - one) == 50 * expected
    hidden = (
        find(found, "the same, normed hidden", 2).stream_bytes - find(found, "the same, normed hidden", 1).stream_bytes
    )
    assert hidden == 50 * {Family.COSYVOICE2: 573_440 + 14_336, Family.COSYVOICE3: 901_120}[family]


@pytest.mark.parametrize(("family", "gflop"), [(Family.COSYVOICE2, 189), (Family.COSYVOICE3, 423)])
def test_a_chunk_costs_what_the_specification_counts(family: Family, gflop: float) -> None:
    assert history_choices._gflop(SIZES[family], 450) == pytest.approx(gflop, abs=0.5)


@pytest.mark.slow
def test_a_window_that_drops_nothing_is_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_choices, "SETTLED_S", 1)
    flow = make_block_flow(Family.COSYVOICE3, block_tokens=25)
    prompt = (
        torch.arange(125) % 100,
        torch.randn(250, 80, generator=torch.Generator().manual_seed(0)),
        torch.ones(192),
    )
    none, some = distances(flow, prompt, 4, [4, 0])
    assert none.mean_abs < 1e-5 < some.mean_abs
