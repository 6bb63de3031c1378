"""Conditional flow matching: integrates the estimator's velocity from noise to mel.

It knows nothing of tokens or streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from token2wav_service.models.config import PastShape

E_co = TypeVar("E_co", bound=nn.Module, covariant=True)


@dataclass(frozen=True)
class EstimatorHistory:
    """What earlier chunks left of an estimator at one solver step, padded to one batch.

    Shapes: L attention layers, h heads, d head_dim, S padded history frames in any order; G groups of convolutions
    with C input channels in all and w columns of left context.
    """

    kv: Tensor
    """[L, B, h, S, 2d] keys (as the queries meet them) then values."""
    tail: Tensor
    """[G, B, C, w] columns that the convolutions continue from."""


@dataclass(frozen=True)
class SolverHistory:
    """`EstimatorHistory` of every solver step; the batch axis holds [conditional, unconditional] per row.

    Shapes as in `EstimatorHistory`, with n solver steps in front and rows split: B streams times 2.
    """

    kv: Tensor
    """[n, L, 2, B, h, S, 2d]."""
    tail: Tensor
    """[n, G, 2, B, C, w]."""


def empty_history(past: PastShape, like: Tensor) -> EstimatorHistory:
    """Return a history of length 0 for a batch shaped as `like` [B, ...]."""
    groups, channels, columns = past.tail
    return EstimatorHistory(
        like.new_zeros(past.layers, len(like), past.heads, 0, past.pair),
        like.new_zeros(groups, len(like), channels, columns),
    )


def time_grid(steps: int) -> Tensor:
    """Return [steps + 1] float32 times 1 - cos(pi/2 * j/steps). Source: specification section 6."""
    return 1 - torch.cos(torch.linspace(0, 1, steps + 1, dtype=torch.float32) * (0.5 * math.pi))


class ConditionalFlowMatching(nn.Module, Generic[E_co]):
    """Euler solver with classifier-free guidance; holds the estimator under upstream's name."""

    def __init__(self, estimator: E_co, guidance: float) -> None:
        super().__init__()
        self.guidance = guidance
        self.estimator = estimator

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
        *,
        first_frames: Tensor | None = None,
    ) -> tuple[Tensor, SolverHistory]:
        """Solve from t = 0 to 1.

        Args:
            noise: [B, 80, T] the state at t = 0.
            mu, speaker, cond, mask, lengths: as the estimator's `forward` takes them, B rows.
            steps: Euler steps; must equal the history's.
            history: what earlier chunks left; None starts from nothing.
            first_frames: [B] absolute frame of each row's first column, for estimators that encode positions.

        Returns:
            Mel [B, 80, T], and what this chunk adds to the history.
        """
        x, rows = noise, noise.shape[0]
        mu2, cond2 = _with_zeros(mu), _with_zeros(cond)
        speaker2, mask2 = _with_zeros(speaker), torch.cat([mask, mask])
        lengths2 = torch.cat([lengths, lengths])
        where = {} if first_frames is None else {"first_frames": torch.cat([first_frames, first_frames])}
        grid = time_grid(steps).tolist()
        kv, tails = [], []
        for step in range(steps):
            time = noise.new_full((2 * rows,), grid[step], dtype=torch.float32)
            past = _at_step(history, step) if history is not None else None
            velocity, own = self.estimator(
                torch.cat([x, x]), mu2, speaker2, cond2, time, mask2, lengths2, past, **where
            )
            conditional, unconditional = velocity.chunk(2)
            guided = (1 + self.guidance) * conditional - self.guidance * unconditional
            x = x + (grid[step + 1] - grid[step]) * guided
            kv.append(own.kv.unflatten(1, (2, rows)))
            tails.append(own.tail.unflatten(1, (2, rows)))
        return x, SolverHistory(torch.stack(kv), torch.stack(tails))


def _with_zeros(conditional: Tensor) -> Tensor:
    return torch.cat([conditional, torch.zeros_like(conditional)])


def _at_step(history: SolverHistory, step: int) -> EstimatorHistory:
    return EstimatorHistory(history.kv[step].flatten(1, 2), history.tail[step].flatten(1, 2))
