"""Windows that join the vocoder's overlapping outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from token2wav_service.config import Crossfade


def crossfade_window(kind: Crossfade, overlap: int) -> Tensor:
    """Return [2 * overlap] float64: fade-in of the new material, then fade-out of the old."""
    if kind is Crossfade.UPSTREAM:
        return torch.hamming_window(2 * overlap, periodic=False, dtype=torch.float64)
    rising = torch.sin((torch.arange(overlap, dtype=torch.float64) + 0.5) * (torch.pi / 2 / overlap)) ** 2
    return torch.cat([rising, 1 - rising])


def crossfade(new: Tensor, old: Tensor, window: Tensor) -> Tensor:
    """Fade from `old` [overlap] into the beginning of `new` [N]; returns [N] in new's dtype."""
    overlap = old.shape[-1]
    faded = new[..., :overlap] * window[:overlap] + old * window[overlap:]
    return torch.cat([faded.to(new.dtype), new[..., overlap:]], -1)
