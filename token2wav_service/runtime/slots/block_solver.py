"""The parts that all solvers of block-masked flows share: the rows of a step, and the common methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from token2wav_service.runtime.kernels import attention_ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.fused_solver import SolverPool


@dataclass(frozen=True)
class BlockSolverBatch:
    """The rows of this step, in mel frames; tensors [B] int64 on the device."""

    places: KeyPlaces
    """Places of the keys: shared prompt, ring, and the chunk's valid frames."""
    first_frames: Tensor
    """Position of each row's first column, counted from the prompt's start."""
    committed: Tensor
    """Frames of the chunk that complete blocks; they join the ring."""
    block: int
    """Number of frames of a block."""
    prompt_size: int = 0
    """Columns that prompts are padded to, where the solver needs a fixed number."""


class BlockSolver(Protocol):
    """Runs an estimator over the solver's steps, for a block-masked flow on a pool; holds packed weights, no state."""

    prompt_sizes: tuple[int, ...]
    """Values of `prompt_size` to prepare programs for."""

    def prompt_size(self, frames: int, end: int) -> int:
        """Return the padded length of the prompts of a batch.

        Args:
            frames: of the longest shared prompt.
            end: position behind the last column of all chunks, counted from the prompt's start.
        """
        ...

    def allocate(self, slots: int, ring: int) -> SolverPool:
        """Allocate the history of so many slots, zeroed, with rings of `ring` frames."""
        ...

    def place_tails(self, tails: Tensor) -> Tensor:
        """Return convolution tails [N, 1, 2, C, w], as the plain modules keep them, in the pool's layout [N, ...]."""
        ...

    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, batch: BlockSolverBatch, pool: SolverPool
    ) -> Tensor:
        """Solve one chunk of every stream, and keep the complete blocks in the pool.

        Args:
            noise: [B, T, 80] float32.
            mu, cond: [B, T, 80]; speaker: [B, 80].
            batch: who runs.
            pool: changed in place.

        Returns:
            Mel [B, T, 80] float32.
        """
        ...


class UnpaddedPrompts:
    """Reads prompts of any length where they are."""

    prompt_sizes: tuple[int, ...] = (0,)

    def prompt_size(self, frames: int, end: int) -> int:
        """See `BlockSolver`."""
        return 0


class HeadedRows:
    """Queries, keys and values of every layer at one solver step: attends to them, and keeps them in the rings."""

    def __init__(self, layers: int, rows: int, heads: int, dim: int, like: Tensor) -> None:
        self.qkv = like.new_empty(layers, rows, 3 * heads * dim)
        """[L, 2BT, 3 H D] queries, keys and values."""
        self.attended = like.new_empty(rows, heads * dim)
        """[2BT, H D] result of the attention."""
        self._heads = heads

    def attend(self, step: int, layer: int, batch: BlockSolverBatch, pool: SolverPool, frames: int) -> Tensor:
        """Return what one layer's queries attend to, valid until the next call."""
        layers = self.qkv.shape[0]
        attention_ops.attend(
            self.qkv[layer], self._heads, pool.window[:, step, layer], (step * layers + layer) * 2 * self._heads,
            batch.places, frames, self.attended, block=batch.block,
        )  # fmt: skip
        return self.attended

    def keep(self, step: int, batch: BlockSolverBatch, pool: SolverPool, frames: int) -> None:
        """Write the complete blocks' keys and values of all layers into the rings."""
        places = batch.places
        attention_ops.commit_rows(
            self.qkv, pool.window[:, step], places.slots, places.generated, batch.committed, frames
        )


def allocate_history(slots: int, steps: int, window: Sequence[int], tails: Sequence[int], like: Tensor) -> SolverPool:
    """Allocate a solver's history, zeroed, in `like`'s dtype on its device; shapes are those of one slot and step."""
    return SolverPool(like.new_zeros(slots, steps, *window), like.new_zeros(slots, steps, *tails))


def pack_attention(attention: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return the weights of queries, keys and values side by side [C, 3 H D], and their bias [3 H D], if any."""
    layers = (attention.to_q, attention.to_k, attention.to_v)
    weight = torch.cat([layer.weight for layer in layers]).to(dtype).t().contiguous()
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers]).to(dtype)
    return weight, bias


def pack_linear(linear: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight [out, in] and bias; a convolution of one tap counts as one."""
    weight = linear.weight if linear.weight.dim() == 2 else linear.weight[:, :, 0]
    return weight.to(dtype).contiguous(), linear.bias.to(dtype)
