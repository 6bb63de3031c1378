"""Small seeded models and voices for streaming tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests import ASSETS
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.config import DiTConfig, EncoderConfig, FlowConfig
from token2wav_service.models.flow.any_flow import Past
from token2wav_service.models.flow.cfm import SolverHistory
from token2wav_service.models.flow.encoder import EncoderPlans
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import FlowState, FlowVoice
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.replay.vectors import VectorFolder
from token2wav_service.replay.vocoder_cases import load_hift_vectors
from token2wav_service.runtime.cpu.packed_flow import PackedFlow

VOCAB = 100
SEED = 7


def make_flow(seed: int = 0) -> Flow:
    """Make Step-Audio2's; a head of its conformer has 24 channels, which are no power of two."""
    config = FlowConfig(
        input_size=48,
        spk_embed_dim=16,
        vocab_size=VOCAB,
        encoder=EncoderConfig(
            input_size=48, output_size=48, num_blocks=2, num_up_blocks=1, attention_heads=2, linear_units=48
        ),
        estimator=DiTConfig(depth=2, num_heads=2, head_dim=8, hidden_size=32),
    )
    flow = Flow(config)
    randomise(flow, seed)
    return flow


def make_hift() -> HiFT:
    """The golden vectors' vocoder: random weights of a sensible scale."""
    return load_hift_vectors(VectorFolder(ASSETS / "golden" / "e_hift"))


def randomise(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            fan_in = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
            scale = fan_in**-0.5 if parameter.dim() > 1 else 0.1
            base = 1.0 if ("norm" in name and name.endswith("weight")) or name.endswith(("alpha", "original0")) else 0.0
            parameter.copy_(base + scale * torch.randn(parameter.shape, generator=generator))
    module.eval().requires_grad_(False)


def random_tokens(count: int, seed: int) -> Tensor:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def random_speaker(seed: int) -> Tensor:
    return torch.randn(16, generator=torch.Generator().manual_seed(seed))


def prepared(flow: StreamFlow | PackedFlow, tokens: int, seed: int) -> FlowVoice:
    mel = torch.randn(2 * tokens, 80, generator=torch.Generator().manual_seed(seed + 1))
    return flow.prepare_voice(random_tokens(tokens, seed), mel, random_speaker(seed))


def make_voice(flow: StreamFlow, tokens: int, seed: int) -> FlowState:
    """Return what streams of a prepared voice start from."""
    return flow.begin(prepared(flow, tokens, seed), 15)


def whole_mel(
    stream: StreamFlow, tokens: Tensor, speaker: Tensor, noise: Tensor, plans: EncoderPlans, solver_mask: Tensor,
    cond: Tensor | None = None, past: Past | None = None,
) -> Tensor:  # fmt: skip
    """Return the mel [80, F] of one pass over a whole utterance's tokens [N] under any masks."""
    flow, steps, lengths = stream.flow, stream.flow.steps(stream.policy.ode_steps), torch.tensor([len(tokens)])
    assert isinstance(flow, Flow)
    past = past or flow.empty_past(1, steps)
    embedded = flow.input_embedding(tokens)[None]
    hidden, frames, _ = flow.encoder(embedded, lengths, torch.tensor([True]), past.caches, past.tokens, plans=plans)
    mu, vector = flow.encoder_proj(hidden).transpose(1, 2), functional.normalize(speaker[None], dim=1)
    mel, _ = flow.decoder(
        noise, mu, flow.spk_embed_affine_layer(vector), torch.zeros_like(mu) if cond is None else cond, solver_mask,
        frames, steps, SolverHistory(past.caches["solver_kv"], past.caches["solver_tail"]),
    )  # fmt: skip
    return torch.as_tensor(mel[0])


def windows(schedule: list[int], total: int) -> list[tuple[int, int, bool]]:
    """Cut `total` tokens into windows of the given hops (3 look-ahead each) and a last one with the rest."""
    out, start = [], 0
    for hop in schedule:
        if start + hop + 3 > total:
            break
        out.append((start, start + hop + 3, False))
        start += hop
    return [*out, (start, total, True)]


def run_stream(
    flow: StreamFlow,
    voice: FlowState,
    tokens: Tensor,
    cuts: list[tuple[int, int, bool]],
    speaker: Tensor,
    seed: int = SEED,
) -> tuple[list[Tensor], list[FlowState]]:
    """Return the mel of every chunk and the states before each and after the last."""
    mels, states = [], [voice]
    for start, end, last in cuts:
        (mel,), (state,) = flow.forward([FlowInput(states[-1], tokens[start:end], speaker, seed, last)])
        mels.append(mel)
        states.append(state)
    return mels, states
