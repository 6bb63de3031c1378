"""Helpers for causal convolutions over chunks of different lengths in one batch."""

from __future__ import annotations

import torch
from torch import Tensor


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
