"""Rows of different lengths in one batch: masks, and the operations that must end where a row ends.

Padding is on the right. Everything here is free of host syncs and of shapes that depend on values, so that callers
can be captured in a CUDA graph. It knows nothing of the models.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def valid_mask(lengths: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return [B, 1, size], 1 before each row's end and 0 from there on; `lengths` is [B] int64."""
    return (torch.arange(size, device=lengths.device) < lengths[:, None])[:, None].to(dtype)


def cleared(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x with zeros beyond the rows' ends, whatever is there (NaN and infinity included)."""
    return x if mask is None else x.masked_fill(mask == 0, 0.0)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x times the mask; x must be finite. Without a mask, x itself."""
    return x if mask is None else x * mask


def add_masked(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """Return x + y times the mask, in one pass."""
    return x + y if mask is None else torch.addcmul(x, y, mask)


def last_valid(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return each row's last value: [B, C, T] to [B, C, 1]."""
    if lengths is None:
        return x[:, :, -1:]
    return x.gather(2, (lengths - 1)[:, None, None].expand(-1, x.shape[1], 1))


def hold_last(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Repeat each row's last value over its padding: [B, C, T] to the same shape."""
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[2], device=x.device) >= lengths[:, None, None]
    return torch.where(beyond, last_valid(x, lengths), x)


def reflect_ends(samples: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Pad [B, N] by `width` at both sides, each row reflected at its own end; [B, N + 2 width].

    Only valid samples are read. What lies more than `width` beyond a row's end has no meaning.
    """
    index = torch.arange(-width, samples.shape[1] + width, device=samples.device).abs()
    ends = lengths[:, None] - 1
    return samples.gather(1, (ends - (index - ends).abs()).clamp(min=0))


def overlap_add(spectrum: Tensor, mask: Tensor, window: Tensor, hop: int) -> Tensor:
    """Centered inverse STFT in which masked frames do not exist.

    Unlike `torch.istft` it gives each row its own window envelope, and does not wait for the device.

    Args:
        spectrum: [B, n_fft / 2 + 1, F] complex, finite.
        mask: [B, 1, F], from `valid_mask`.
        window: [n_fft].
        hop: samples between frames.

    Returns:
        [B, hop (F - 1)] samples; a row with f frames is valid up to hop (f - 1).
    """
    size = window.shape[0]
    frames = torch.fft.irfft(spectrum, size, dim=1) * window[:, None] * mask
    samples = _fold(frames, hop)
    envelope = _fold((window**2)[:, None] * mask, hop)
    # Within a row the envelope is far from 0; beyond, both are 0.
    return samples / envelope.clamp(min=torch.finfo(envelope.dtype).tiny)


def _fold(frames: Tensor, hop: int) -> Tensor:
    """Add up overlapping frames [B, n_fft, F] and cut the centering's half frame at both sides."""
    size, count = frames.shape[1:]
    total = hop * (count - 1) + size
    added = functional.fold(frames, (1, total), (1, size), stride=(1, hop))[:, 0, 0]
    return added[:, size // 2 : total - size // 2]
