"""Causal convolutions over chunks of different lengths in one batch, and the one layer that looks ahead."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def valid_mask(lengths: Tensor, size: int) -> Tensor:
    """Return [B, size] bool, true where the column index is below the row's length."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def causal_tail(columns: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Return the columns that the next chunk's convolution needs.

    Args:
        columns: [B, C, width + T], `width` cached columns followed by this chunk's, padded on the right.
        lengths: [B] valid columns of this chunk per row.
        width: columns to keep, the kernel size less one.

    Returns:
        [B, C, width], the last valid columns of each row.
    """
    index = lengths[:, None] + torch.arange(width, device=columns.device)[None, :]
    return columns.gather(2, index[:, None, :].expand(-1, columns.shape[1], -1))


class PreLookahead(nn.Module):
    """Mixes each token with the next ones: a convolution that looks ahead, then a causal one, added to the input."""

    def __init__(self, channels: int, hidden: int, lookahead: int) -> None:
        super().__init__()
        self.lookahead = lookahead
        self.conv1 = nn.Conv1d(channels, hidden, lookahead + 1)
        self.conv2 = nn.Conv1d(hidden, channels, 3)

    def forward(self, x: Tensor, size: int, lengths: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Mix in the look-ahead.

        Args:
            x: [B, at least size + lookahead, C].
            size: columns to make.
            lengths: [B] columns per row after which the tail is taken.
            tail: [B, hidden, 2] columns that the causal convolution continues from.

        Returns:
            [B, size, C], and the new tail.
        """
        y = functional.leaky_relu(self.conv1(x[:, : size + self.lookahead].transpose(1, 2)))
        columns = torch.cat([tail, y], 2)
        mixed = self.conv2(columns).transpose(1, 2) + x[:, :size]
        return mixed, causal_tail(columns, lengths, tail.shape[2])
