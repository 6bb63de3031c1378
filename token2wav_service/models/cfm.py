"""Conditional flow matching: integrates the estimator's velocity from noise to mel.

It knows nothing of tokens or streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from token2wav_service.models.config import DiTConfig
from token2wav_service.models.dit import DiT, DiTHistory


@dataclass(frozen=True)
class SolverHistory:
    """`DiTHistory` of every solver step; the batch axis holds [conditional, unconditional] per row.

    Shapes as in `DiTHistory`, with n solver steps in front and rows split: B streams times 2.
    """

    kv: Tensor
    """[n, L, 2, B, h, S, 2d]."""
    tail: Tensor
    """[n, L, 2, B, 2C, 2]."""


def time_grid(steps: int) -> Tensor:
    """Return [steps + 1] float32 times 1 - cos(pi/2 * j/steps). Source: specification section 6."""
    return 1 - torch.cos(torch.linspace(0, 1, steps + 1, dtype=torch.float32) * (0.5 * math.pi))


class ConditionalFlowMatching(nn.Module):
    """Euler solver with classifier-free guidance; holds the estimator under upstream's name."""

    def __init__(self, config: DiTConfig, guidance: float) -> None:
        super().__init__()
        self.guidance = guidance
        self.estimator = DiT(config)

    def forward(
        self,
        noise: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        mask: Tensor,
        lengths: Tensor,
        steps: int,
        history: SolverHistory | None = None,
    ) -> tuple[Tensor, SolverHistory]:
        """Solve from t = 0 to 1.

        Args:
            noise: [B, 80, T] the state at t = 0.
            mu, speaker, cond, mask, lengths: as `DiT.forward` takes them, B rows.
            steps: Euler steps; must equal the history's.
            history: what earlier chunks left; None starts from nothing.

        Returns:
            Mel [B, 80, T], and what this chunk adds to the history.
        """
        x, rows = noise, noise.shape[0]
        mu2, cond2 = _with_zeros(mu), _with_zeros(cond)
        speaker2, mask2 = _with_zeros(speaker), torch.cat([mask, mask])
        lengths2 = torch.cat([lengths, lengths])
        grid = time_grid(steps).tolist()
        kv, tails = [], []
        for step in range(steps):
            time = noise.new_full((2 * rows,), grid[step], dtype=torch.float32)
            past = _at_step(history, step) if history is not None else None
            velocity, own = self.estimator(torch.cat([x, x]), mu2, speaker2, cond2, time, mask2, lengths2, past)
            conditional, unconditional = velocity.chunk(2)
            guided = (1 + self.guidance) * conditional - self.guidance * unconditional
            x = x + (grid[step + 1] - grid[step]) * guided
            kv.append(own.kv.unflatten(1, (2, rows)))
            tails.append(own.tail.unflatten(1, (2, rows)))
        return x, SolverHistory(torch.stack(kv), torch.stack(tails))


def _with_zeros(conditional: Tensor) -> Tensor:
    return torch.cat([conditional, torch.zeros_like(conditional)])


def _at_step(history: SolverHistory, step: int) -> DiTHistory:
    return DiTHistory(history.kv[step].flatten(1, 2), history.tail[step].flatten(1, 2))
