"""Pitch from mel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from token2wav_service.models.masking import cleared, masked, valid_mask

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

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map mel to pitch.

        Args:
            mel: [B, 80, T] float32.
            lengths: [B] int64 valid frames (1 or more) on mel's device; None where all rows are full.

        Returns:
            [B, T] Hz, 0 or more; below 10 is unvoiced. Without meaning beyond a row's end.
        """
        mask = None if lengths is None else valid_mask(lengths, mel.shape[2], mel.dtype)
        x = cleared(mel, mask)
        layers = list(self.condnet)
        for conv, activation in zip(layers[::2], layers[1::2], strict=True):
            x = activation(masked(conv(x), mask))
        return torch.abs(self.classifier(x.transpose(1, 2)).squeeze(-1))
