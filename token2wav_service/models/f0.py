"""Pitch from mel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

LAYERS = 5


class F0Predictor(nn.Module):
    """Five convolutions and a linear layer. Source: specification section 8."""

    def __init__(self, in_channels: int, cond_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for layer in range(LAYERS):
            channels = in_channels if layer == 0 else cond_channels
            layers += [weight_norm(nn.Conv1d(channels, cond_channels, 3, padding=1)), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(cond_channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """Map mel [B, 80, T] to pitch [B, T] in Hz (0 or more; below 10 is unvoiced)."""
        return torch.abs(self.classifier(self.condnet(mel).transpose(1, 2)).squeeze(-1))
