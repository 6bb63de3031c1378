"""The flow as it is trained: the project's own modules, with the token table computed from the tokens' digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.train.codes import CodeTable
from token2wav_service.models.config import FlowConfig
from token2wav_service.models.flow import Flow, FlowPlans

MEAN_LOG_MEL = -6.0
"""Where the estimator's answers start; the loss would otherwise begin with finding the mean."""


class TrainableFlow(nn.Module):
    """Everything of `Flow` but its embedding, which `finished` puts back."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.codes = CodeTable(config.input_size, config.input_size)
        self.flow = Flow(config)
        del self.flow.input_embedding
        _initialise(self.flow)

    def encode(self, tokens: Tensor, is_last: Tensor, frames: int, plans: FlowPlans) -> Tensor:
        """Return mu [B, 80, frames] of tokens [B, N], three more than are spoken unless a row is last."""
        embedded = functional.embedding(tokens, self.codes())
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        size = frames // self.flow.config.encoder.up_stride
        hidden, _, _ = self.flow.encoder(embedded, lengths, is_last, plans=plans.encoder, size=size)
        return torch.as_tensor(self.flow.encoder_proj(hidden).transpose(1, 2))

    def speaker(self, embedding: Tensor) -> Tensor:
        """Return [B, 80] of raw speaker embeddings [B, 192]."""
        return torch.as_tensor(self.flow.spk_embed_affine_layer(functional.normalize(embedding, dim=1)))

    def velocity(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, time: Tensor, plans: FlowPlans) -> Tensor:
        """Estimate the velocity [B, 80, T] at `time` [B]."""
        lengths = torch.full((len(x),), x.shape[2], device=x.device)
        velocity, _ = self.flow.decoder.estimator(x, mu, speaker, cond, time, plans.solver_mask, lengths)
        return torch.as_tensor(velocity)

    @torch.no_grad()
    def finished(self) -> Flow:
        """Return an ordinary flow with these weights, float32 on the CPU, in eval mode."""
        flow = Flow(self.flow.config)
        table = {"input_embedding.weight": self.codes()}
        flow.load_state_dict({k: v.float().cpu() for k, v in {**self.flow.state_dict(), **table}.items()}, strict=True)
        return flow.eval().requires_grad_(False)


def _initialise(flow: Flow) -> None:
    """Start every DiT block as the identity, and the answer at the mean mel.

    Source: adaLN-Zero (Peebles and Xie, arXiv 2212.09748).
    """
    estimator = flow.decoder.estimator
    for block in (*estimator.blocks, estimator.final_layer):
        modulation = block.get_submodule("adaLN_modulation.1")
        assert isinstance(modulation, nn.Linear)
        nn.init.zeros_(modulation.weight)
        nn.init.zeros_(modulation.bias)
    nn.init.zeros_(estimator.final_layer.linear.weight)
    nn.init.constant_(estimator.final_layer.linear.bias, MEAN_LOG_MEL)
