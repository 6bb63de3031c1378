"""Chunks of different lengths in one batch: inputs, caches, causal convolutions, the look-ahead layer and attention.

An `AttentionPlan` says which keys a chunk's queries see, and at what distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

S = TypeVar("S")


@dataclass(frozen=True)
class FlowInput(Generic[S]):
    """One stream's part of a batch of token chunks."""

    state: S
    token_ids: Tensor
    """[N] int64; unless last, the final 3 are look-ahead."""
    speaker: Tensor
    """[192] raw speaker embedding."""
    seed: int
    is_last: bool


@dataclass(frozen=True)
class VocoderInput(Generic[S]):
    """One stream's part of a batch of mel chunks."""

    state: S
    mel: Tensor
    """[80, F] new frames, float32; none are needed in a last call whose state holds some."""
    seed: int
    is_last: bool


@dataclass(frozen=True)
class CacheSpec:
    """One tensor of a stream's state."""

    name: str
    shape: tuple[int, ...]
    """Shape without a batch; 0 on the time axis."""
    batch_axis: int
    """Position of the batch's axis in the tensor of many streams."""
    time_axis: int | None = None
    """Axis of `shape` that grows, time ascending; None where the size is fixed."""
    columns_per_token: int = 0
    """Columns of the time axis for every token (25 Hz)."""


def empty_caches(specs: Sequence[CacheSpec], like: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a batch of streams that have not begun, shaped as `like` [B, ...]."""
    rows = len(like)
    shapes = {spec.name: (*spec.shape[: spec.batch_axis], rows, *spec.shape[spec.batch_axis :]) for spec in specs}
    return {name: like.new_zeros(shape) for name, shape in shapes.items()}


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


@dataclass(frozen=True)
class AttentionPlan:
    """Mask and distances of one attention over [history | own chunk]."""

    mask: Tensor
    """[B, 1, Q or 1, K] bool, true where the key may be seen."""
    relative: Tensor
    """[Q, K] int64, query position minus key position."""
    relative_min: int
    """Smallest value in `relative`."""
    relative_max: int
    """Largest value in `relative`."""


def chunk_plan(
    history_lengths: Tensor,
    history_size: int,
    chunk_lengths: Tensor,
    chunk_size: int,
    block: int | None = None,
) -> AttentionPlan:
    """Let every query see the valid history and its whole own chunk, or the chunk up to the end of its own block.

    History is aligned to the right, so that the distance of a key is the same in every row whatever the
    row's history length.

    Args:
        history_lengths: [B] valid history columns (the last ones).
        history_size: padded history columns.
        chunk_lengths: [B] valid columns of the chunk (the first ones).
        chunk_size: padded chunk columns.
        block: columns in a block of the mask, counted from the chunk's start; None or 0 is no mask inside the chunk.
    """
    device = chunk_lengths.device
    seen = valid_mask(history_lengths, history_size).flip(1)
    own = valid_mask(chunk_lengths, chunk_size)
    keys = torch.arange(history_size + chunk_size, device=device)
    queries = torch.arange(chunk_size, device=device) + history_size
    mask = torch.cat([seen, own], 1)[:, None, None, :]
    if block:
        ends = block_ends(chunk_size, block, device)
        mask = mask & (keys[None, :] < (ends + history_size)[:, None])[None, None]
    return AttentionPlan(
        mask=mask,
        relative=queries[:, None] - keys[None, :],
        relative_min=1 - chunk_size,
        relative_max=history_size + chunk_size - 1,
    )


def block_ends(size: int, block: int, device: torch.device | None = None) -> Tensor:
    """Return [size] int64, the first column behind each column's block."""
    return (torch.arange(size, device=device) // block + 1) * block


def relative_sinusoids(plan: AttentionPlan, width: int, dtype: torch.dtype) -> Tensor:
    """Return [R, width], row j the encoding of distance `relative_min + j`: sin on even, cos on odd channels.

    Source: specification section 4 (Transformer-XL style encoding in closed form), angles in float64.
    """
    distance = torch.arange(plan.relative_min, plan.relative_max + 1, device=plan.relative.device, dtype=torch.float64)
    return sinusoids(distance, width).to(dtype)


def sinusoids(distance: Tensor, width: int) -> Tensor:
    """Return [R, width] float64 encodings of distances [R] float64; see `relative_sinusoids`."""
    channel = torch.arange(0, width, 2, device=distance.device, dtype=torch.float64)
    angle = distance[:, None] * torch.exp(channel * (-math.log(10000.0) / width))[None, :]
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class ChunkAttention(nn.Module):
    """Attention of a chunk to [history | itself]; keys are kept as the queries meet them."""

    def __init__(self, width: int, heads: int, head_dim: int, *, has_bias: bool) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        inner = heads * head_dim
        self.to_q = nn.Linear(width, inner, bias=has_bias)
        self.to_k = nn.Linear(width, inner, bias=has_bias)
        self.to_v = nn.Linear(width, inner, bias=has_bias)
        self.to_out = nn.Sequential(nn.Linear(inner, width))

    def forward(
        self, x: Tensor, mask: Tensor, history_kv: Tensor, rotation: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, T, width].
            mask: [B, 1, T or 1, S + T] bool, true where a key may be seen; history keys come first.
            history_kv: [B, h, S, 2d] keys, then values.
            rotation: [B or 1, T, d / 2, 2] cosines and sines that queries and keys are turned by; None turns nothing.

        Returns:
            [B, T, width], and the chunk's own keys and values [B, h, T, 2d].
        """
        q, k = self.to_q(x), self.to_k(x)
        if rotation is not None:
            q, k = _rotate_first_head(q, rotation), _rotate_first_head(k, rotation)
        own_kv = torch.cat([self._split(k), self._split(self.to_v(x))], -1)
        keys, values = torch.cat([history_kv, own_kv], 2).chunk(2, -1)
        mixed = functional.scaled_dot_product_attention(self._split(q), keys, values, attn_mask=mask)
        return self.to_out(mixed.transpose(1, 2).flatten(2)), own_kv

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)


def _rotate_first_head(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate neighbouring channels of [B, T, h d] where the table reaches: in head 0 only, as upstream does."""
    width = 2 * rotation.shape[2]
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = rotation.unbind(-1)
    rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([rotated, x[..., width:]], -1)
