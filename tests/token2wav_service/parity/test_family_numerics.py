"""The numerics of CosyVoice2's flow, CosyVoice3's flow and the causal vocoder, pinned.

`tests/assets/family_numerics.json` holds a few values of small random models, computed when every golden vector of
both families was within its tolerance (`cosydit replay`). The golden vectors themselves are too large to stand here.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests import ASSETS
from tests.token2wav_service.streaming.family_factory import (
    COSYVOICE,
    make_block_flow,
    make_causal_hift,
    normal,
    random_speaker,
)
from tests.token2wav_service.streaming.flow_factory import random_tokens
from token2wav_service.checkpoint.family import Family
from token2wav_service.replay.flow_cases import showing_all
from token2wav_service.replay.vectors import FLOW_TOLERANCE, INJECTED_TOLERANCE

PINNED = json.loads((ASSETS / "family_numerics.json").read_text("utf-8"))
MASKS = ("streaming", "unmasked", "unmasked_estimator")
TOKENS, PROMPT_FRAMES, FRAMES = 37, 26, 20


def mel_samples(family: Family, mask: str) -> Tensor:
    """Every ninth bin of every seventh frame of a whole pass."""
    cond = functional.pad(normal(1, 80, PROMPT_FRAMES, seed=3), (0, 2 * TOKENS - PROMPT_FRAMES))
    flow = make_block_flow(family)
    if mask == "unmasked_estimator":
        flow.decoder.register_forward_pre_hook(showing_all)
    mel, _ = flow(
        random_tokens(TOKENS, 1)[None],
        torch.tensor([TOKENS]),
        torch.tensor([True]),
        random_speaker(2)[None],
        normal(1, 80, 2 * TOKENS, seed=4),
        10,
        cond=cond,
        is_masked=mask != "unmasked",
    )
    return mel[0, ::9, ::7].flatten()


def wave_samples() -> Tensor:
    """Every 97th sample of a whole mel."""
    hift = make_causal_hift()
    wave, _ = hift(
        functional.pad(normal(1, 80, FRAMES, seed=5) - 6, (0, hift.lookahead)),
        torch.tensor([FRAMES]),
        torch.tensor([True]),
        hift.initial_state(1),
        torch.rand(1, 480 * (FRAMES + 1), 9, generator=torch.Generator().manual_seed(6)),
        is_reference=True,
    )
    return wave[0, hift.held_samples :: 97]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("family", COSYVOICE)
def test_a_flow_s_mel_is_as_pinned(family: Family, mask: str) -> None:
    got, expected = mel_samples(family, mask), torch.tensor(PINNED[f"{family.value}.{mask}"])
    torch.testing.assert_close(got, expected, atol=FLOW_TOLERANCE, rtol=0)


def test_the_causal_vocoder_s_audio_is_as_pinned() -> None:
    torch.testing.assert_close(wave_samples(), torch.tensor(PINNED["causal_hift"]), atol=INJECTED_TOLERANCE, rtol=0)
