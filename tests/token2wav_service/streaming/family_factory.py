"""Small seeded block-masked flows, causal vocoders and streams for tests."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tests.token2wav_service.streaming.flow_factory import VOCAB, random_tokens
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.loader import build_flow
from token2wav_service.checkpoint.make_random import SMALL_SIZES, random_flow_state, random_hift_state
from token2wav_service.models.config import CosyVoice2FlowConfig, CosyVoice3FlowConfig
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.flow_state import FlowState
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.causal_hift import CausalHiFT

COSYVOICE = (Family.COSYVOICE2, Family.COSYVOICE3)
BLOCK = 10


def make_block_flow(family: Family, seed: int = 0, block_tokens: int = BLOCK, *, is_least: bool = False) -> AnyFlow:
    """Make a flow; `is_least` leaves one block of every kind, for kernels in the interpreter."""
    config = SMALL_SIZES[family][0]
    assert isinstance(config, CosyVoice2FlowConfig | CosyVoice3FlowConfig)
    config = replace(config, block_tokens=block_tokens, vocab_size=VOCAB)
    if is_least and isinstance(config, CosyVoice2FlowConfig):
        encoder = replace(config.encoder, num_blocks=1, num_up_blocks=1)
        config = replace(config, encoder=encoder, estimator=replace(config.estimator, num_mid_blocks=1))
    flow = build_flow(config)
    flow.load_state_dict(random_flow_state(config, seed))
    return flow.eval().requires_grad_(False)


def make_causal_hift(seed: int = 0) -> CausalHiFT:
    config = SMALL_SIZES[Family.COSYVOICE3][1]
    hift = CausalHiFT(config)
    hift.load_state_dict(random_hift_state(config, seed))
    return hift.eval().requires_grad_(False)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_speaker(seed: int, flow: StreamFlow | None = None) -> Tensor:
    return normal(flow.flow.spk_embed_affine_layer.in_features if flow else 192, seed=seed)


def prepare_voice(flow: StreamFlow, tokens: int, seed: int, trimmed: int = 0) -> FlowState:
    mel = normal(2 * tokens, 80, seed=seed + 1)
    return flow.run_prompt(random_tokens(tokens, seed), mel, random_speaker(seed, flow), trimmed)
