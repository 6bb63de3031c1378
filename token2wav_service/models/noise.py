"""Noise as a function of (seed, domain, position): the same on every call, in every batch, at any time."""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORDS = 4
"""32-bit words per counter."""
_UNIFORM_SHIFT = 8


class NoiseDomain(IntEnum):
    """Keeps the noise of different uses apart."""

    FLOW = 0
    SOURCE = 1


def frozen_normal(mel_bins: int, frames: int) -> Tensor:
    """Return [mel_bins, frames], the buffer of seed 0 that every process of the original draws."""
    return torch.randn(mel_bins, frames, generator=torch.Generator().manual_seed(0))


def counter_normal(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: NoiseDomain) -> Tensor:
    """Draw standard normals.

    Args:
        seeds: [B] int64, 0 or more.
        starts: [B] int64, absolute position (frame) of each row's first column.
        positions: columns to draw.
        width: values per position.
        domain: what the noise is for.

    Returns:
        [B, positions, width] float32; each value depends on its seed, domain, position and index alone.
    """
    words = _words(seeds, starts, positions, width, domain)
    pairs = [_box_muller(words[0], words[1]), _box_muller(words[2], words[3])]
    return torch.stack([value for pair in pairs for value in pair], -1).flatten(2)[:, :, :width]


def counter_uniform(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: NoiseDomain) -> Tensor:
    """Draw float32 numbers in 0..1 (1 excluded); arguments and result as in `counter_normal`."""
    words = _words(seeds, starts, positions, width, domain)
    # The upper 24 bits: what float32 holds without rounding up to 1.
    values = [(word >> _UNIFORM_SHIFT).float() / 2.0**24 for word in words]
    return torch.stack(values, -1).flatten(2)[:, :, :width]


def _words(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: NoiseDomain) -> tuple[Tensor, ...]:
    """Return four [B, positions, width / 4 rounded up] words in 0..2^32-1."""
    blocks = -(-width // _WORDS)
    shape = (seeds.shape[0], positions, blocks)
    position = starts[:, None] + torch.arange(positions, device=seeds.device)[None, :]
    block = torch.arange(blocks, device=seeds.device)
    counter = (
        block[None, None, :].expand(shape),
        (position & _MASK)[:, :, None].expand(shape),
        (position >> 32)[:, :, None].expand(shape),
        torch.full((), int(domain), device=seeds.device, dtype=torch.int64).expand(shape),
    )
    return philox_4x32(counter, ((seeds & _MASK)[:, None, None], (seeds >> 32)[:, None, None]))


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return four words in 0..2^32-1 (as int64) per counter.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; Philox4x32-10.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # Products wrap, which leaves all 64 bits right. NOTE: c1 and c3 keep more than their 32 bits up to the end.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (second >> 32).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(_MASK)
        c2 = (first >> 32).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(_MASK)
        c1, c3 = second, first
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def _box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    # float64 keeps all 32 bits, so the radius is finite and the angle exact.
    radius = torch.sqrt(-2 * torch.log((first.double() + 1) / 2.0**32))
    angle = second.double() * (2 * math.pi / 2.0**32)
    return (radius * torch.cos(angle)).float(), (radius * torch.sin(angle)).float()
