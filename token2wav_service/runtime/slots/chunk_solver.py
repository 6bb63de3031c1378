"""The parts that all solvers share: the rows of a step, what solvers keep of streams, and the common methods."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.flow.cfm import ConditionalFlowMatching, time_grid
from token2wav_service.runtime.kernels import attention_ops, ops, product_ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces


@dataclass(frozen=True)
class SolverPool:
    """State of all streams' solver history.

    Shapes: slots S, solver steps n, layers L, heads H, head dim D, window W.
    """

    window: Tensor
    """[S, n, L, 2, H, W, 2D] ring of the newest frames' keys and values."""
    tails: Tensor
    """[S, n, ...] columns that the convolutions continue from, in the solver's own layout."""


@dataclass(frozen=True)
class SolverBatch:
    """The rows of this step, in mel frames; tensors [B] int64 on the device."""

    places: KeyPlaces
    """Places of the keys: shared prompt, ring, and the chunk's valid frames."""
    first_frames: Tensor
    """Position of each row's first column, counted from the prompt's start."""
    committed: Tensor
    """Frames of the chunk that join the ring: those of complete blocks, or all."""
    block: int = 0
    """Number of frames of a block; 0 without a block mask."""
    prompt_size: int = 0
    """Columns that prompts are padded to, where the solver needs a fixed number."""


class ChunkSolver(ABC):
    """Runs an estimator over the solver's steps, for a flow on a pool; holds packed weights, no state."""

    prompt_sizes: tuple[int, ...] = (0,)
    """Values of `prompt_size` to prepare programs for."""

    def prompt_size(self, frames: int, end: int) -> int:
        """Return the padded length of the prompts of a batch; 0 reads prompts of any length where they are.

        Args:
            frames: of the longest shared prompt.
            end: position behind the last column of all chunks, counted from the prompt's start.
        """
        return 0

    def only_first_step(self) -> AbstractContextManager[None]:
        """Have chunks be solved by one step meanwhile: all kernels are launched, and the mel means nothing."""
        return nullcontext()

    @abstractmethod
    def allocate(self, slots: int, ring: int) -> SolverPool:
        """Allocate the history of so many slots, zeroed, with rings of `ring` frames."""

    @abstractmethod
    def place_tails(self, tails: Tensor) -> Tensor:
        """Return convolution tails [N, G, 2, C, w], as the plain modules keep them, in the pool's layout [N, ...]."""

    @abstractmethod
    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch, pool: SolverPool
    ) -> Tensor:
        """Solve one chunk of every stream, and keep in the pool what is committed.

        Args:
            noise: [B, T, 80] float32.
            mu, cond: [B, T, 80]; speaker: [B, 80]. Only a flow without a block mask gives no `cond`: zeros.
            batch: who runs.
            pool: changed in place.

        Returns:
            Mel [B, T, 80] float32.
        """


class FusedSolver(ChunkSolver):
    """One on fused kernels: everything that is the same for every chunk is computed at load."""

    tails: tuple[int, ...]
    """Shape of one slot's tails at one step."""
    constant_weight: Tensor
    in_bias: Tensor
    """Of the input projection, where all but x's part of it is computed once for a chunk."""
    few_rows = 0
    """Rows up to which each kernel starts while the one before it ends; see `product_ops.most_rows`."""

    def __init__(self, cfm: ConditionalFlowMatching[Any], steps: int, dtype: torch.dtype) -> None:
        """Read the schedule of `steps` Euler steps; products and pools are of `dtype`."""
        self.steps, self.dtype, self.guidance = steps, dtype, cfm.guidance
        self.device, self.past = next(cfm.parameters()).device, cfm.estimator.config.past
        grid = time_grid(steps)
        self.times = grid[:-1].to(self.device)
        """[n] time at the beginning of each step."""
        self.deltas = (grid[1:] - grid[:-1]).tolist()
        self.run_steps = range(steps)
        """Those that a chunk takes."""

    @contextmanager
    def only_first_step(self) -> Iterator[None]:
        """See `ChunkSolver`."""
        self.run_steps, all_steps = range(1), self.run_steps
        try:
            yield
        finally:
            self.run_steps = all_steps

    @abstractmethod
    def plain_tails(self, tails: Tensor) -> Tensor:
        """Return tails [N, ...] as the pool has them, as the plain modules keep them: [N, G, 2, C, w]."""

    def advance(self, step: int, x: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return x after a step, float32 and in the products' dtype."""
        return ops.guide(x, velocity, self.deltas[step], self.guidance, self.dtype)

    def allocate(self, slots: int, ring: int) -> SolverPool:
        """See `ChunkSolver`."""
        window = (self.past.layers, 2, self.past.heads, ring, self.past.pair)
        return SolverPool(
            *(torch.zeros(slots, self.steps, *s, dtype=self.dtype, device=self.device) for s in (window, self.tails))
        )

    def constant_part(self, *conditions: Tensor) -> Tensor:
        """[2, B, T, C] float32: what the input projection adds to x's part at every step, of what stands behind x."""
        rows = torch.cat(conditions, -1).to(self.dtype)
        conditional = functional.linear(rows, self.constant_weight, self.in_bias)
        return torch.stack([conditional, self.in_bias.expand_as(conditional)]).float()


class HeadedRows:
    """Queries, keys and values of every layer at one solver step: attends to them, and keeps them in the rings."""

    def __init__(self, layers: int, rows: int, heads: int, dim: int, like: Tensor, few_rows: int) -> None:
        self.is_few = rows <= few_rows
        self.qkv = like.new_empty(layers, rows, 3 * heads * dim)
        """[L, 2BT, 3 H D] queries, keys and values."""
        self.attended = like.new_empty(rows, heads * dim)
        """[2BT, H D] result of the attention."""
        self._heads = heads

    def attend(
        self, step: int, layer: int, batch: SolverBatch, pool: SolverPool, frames: int, out: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the product of what one layer's queries attend to with its output weight and bias."""
        layers = self.qkv.shape[0]
        pieces = attention_ops.attend(
            self.qkv[layer], self._heads, pool.window[:, step, layer], (step * layers + layer) * 2 * self._heads,
            batch.places, frames, self.attended, block=batch.block, combines=not self.is_few, overlaps=self.is_few,
        )  # fmt: skip
        return product_ops.linear_of_attention(pieces, self.attended, *out, is_few=self.is_few)

    def keep(self, step: int, batch: SolverBatch, pool: SolverPool, frames: int) -> None:
        """Write the complete blocks' keys and values of all layers into the rings."""
        places = batch.places
        attention_ops.commit_rows(
            self.qkv, pool.window[:, step], places.slots, places.generated, batch.committed, frames
        )


def pack_heads(attention: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return the weights of queries, keys and values below each other [3 H D, C], and their bias [3 H D], if any."""
    layers = (attention.to_q, attention.to_k, attention.to_v)
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers]).to(dtype)
    return torch.cat([layer.weight for layer in layers]).to(dtype), bias


def pack_linear(linear: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight [out, in] and bias; a convolution of one tap counts as one."""
    weight = linear.weight if linear.weight.dim() == 2 else linear.weight[:, :, 0]
    return weight.to(dtype).contiguous(), linear.bias.to(dtype)


def shifted_weight(conv: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[out, in, 3] of a causal convolution as [out, 3 in] over the rows [t-2 | t-1 | t]."""
    return conv.weight.permute(0, 2, 1).flatten(1).to(dtype).contiguous(), conv.bias.to(dtype)


def float_copy(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy in float32."""
    return copy.deepcopy(module).float()


def float_norm(norm: Any) -> tuple[Tensor, Tensor]:
    """Return a norm's weight and bias in float32."""
    return norm.weight.detach().float(), norm.bias.detach().float()


def affine_float(linear: Any, x: Tensor) -> Tensor:
    """Run a linear layer in float32."""
    return functional.linear(x, linear.weight.float(), linear.bias.float())
