"""Convolutions with batch norm, the building stones of the two prompt models; folded into one when exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvUnit(nn.Module):
    """Same-padded convolution, then batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.stride, self.dilation, self.padding = stride, dilation, (kernel - 1) // 2 * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, self.padding, dilation, bias=False)
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, T] to [B, outputs, ceil(T / stride)]."""
        return torch.as_tensor(self.norm(self.conv(x)))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the one convolution that equals the unit in eval mode."""
        norm = self.norm
        assert norm.running_var is not None and norm.running_mean is not None
        gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        return self.conv.weight * gain[:, None, None], norm.bias - norm.running_mean * gain


class ResidualBlock(nn.Module):
    """x + 1x1(relu(k5(x))), then relu."""

    KERNEL = 5

    def __init__(self, channels: int, dilation: int = 1) -> None:
        super().__init__()
        self.wide = ConvUnit(channels, channels, self.KERNEL, dilation=dilation)
        self.point = ConvUnit(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, T] to the same shape."""
        return torch.relu(x + self.point(torch.relu(self.wide(x))))
