"""The flow's solver around a TensorRT estimator, for streams whose state lives in slots.

What `runtime/solver.py` computes. Nothing here waits for the GPU, and everything but the first use of a size can be
captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.models.causal import valid_mask
from token2wav_service.models.config import DiTConfig
from token2wav_service.models.flow.cfm import time_grid
from token2wav_service.runtime.slots.fused_solver import CONVOLUTIONS, ChunkSolver, SolverBatch, SolverPool
from token2wav_service.runtime.tensorrt.contexts import BoundContext
from token2wav_service.runtime.tensorrt.history import gather_history
from token2wav_service.runtime.tensorrt.planned import EstimatorSizes, PlannedEngine

UNPADDED = 0
"""Prompt size of batches that the fused kernels solve, because the engine is not prepared for their prompts."""


@dataclass(frozen=True)
class _Voices:
    """Which rows bring a voice that no earlier row has."""

    is_first: Tensor
    """[B] int64, 1 or 0."""
    row: Tensor
    """[B] the row that brings this row's voice."""


class TensorRTSolver:
    """Solves chunks of many streams; holds no state of theirs."""

    def __init__(
        self,
        estimator: PlannedEngine[EstimatorSizes],
        config: DiTConfig,
        steps: int,
        guidance: float,
        prompt_sizes: Sequence[int],
        max_prompt_frames: int,
        other_sizes: ChunkSolver,
    ) -> None:
        """Keep the parts.

        Args:
            prompt_sizes: columns that prompts are padded to, ascending.
            max_prompt_frames: longest prompt that may come.
            other_sizes: solves the chunks whose sizes the engine has not been planned for; needs no padding.
        """
        self._estimator, self._config, self._steps, self._guidance = estimator, config, steps, guidance
        self._other_sizes = other_sizes
        unpadded = () if prompt_sizes[-1] >= max_prompt_frames else (UNPADDED,)
        self.prompt_sizes = (*prompt_sizes, *unpadded)
        grid = time_grid(steps)
        self._times, self._deltas = grid[:-1].tolist(), (grid[1:] - grid[:-1]).tolist()

    def prompt_size(self, frames: int) -> int:
        """Return the columns that a batch with a longest prompt of `frames` is padded to."""
        return next((size for size in self.prompt_sizes if size >= frames), UNPADDED)

    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch, pool: SolverPool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve one chunk of every stream; see `FusedSolver.solve`."""
        streams, frames, _ = noise.shape
        sizes = EstimatorSizes(streams, frames, batch.prompt_size, pool.window.shape[-2])
        if sizes not in self._estimator.sizes:
            return self._other_sizes.solve(noise, mu, speaker, cond, batch, pool)
        bound = self._estimator.bind(sizes)
        voices = _voices(batch.prompts)
        self._fill_constants(bound, mu, speaker, cond, batch, voices)
        c, dtype = self._config, pool.window.dtype
        own = noise.new_empty(streams, self._steps, c.depth, 2, c.num_heads, frames, 2 * c.head_dim, dtype=dtype)
        tails = noise.new_empty(streams, *pool.tails.shape[1:], dtype=dtype)
        x, velocity = (bound.tensors[name].view(2, streams, -1, frames) for name in ("x", "velocity"))
        chunk_kv = bound.tensors["chunk_kv"].view(c.depth, 2, streams, c.num_heads, frames, -1).movedim(2, 0)
        x.copy_(noise.transpose(1, 2))
        for step in range(self._steps):
            self._fill_history(bound, step, batch, voices, pool)
            bound.run()
            conditional, unconditional = velocity
            guided = (1 + self._guidance) * conditional - self._guidance * unconditional
            x.add_(guided, alpha=self._deltas[step])
            own[:, step] = chunk_kv
            tails[:, step] = _pool_tails(bound.tensors["new_tail"], streams)
        return x[0].transpose(1, 2).contiguous(), own, tails

    def _fill_constants(
        self,
        bound: BoundContext,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor | None,
        batch: SolverBatch,
        voices: _Voices,
    ) -> None:
        """Write what is the same at every step; unconditional rows see no mu, speaker or condition."""
        t, streams = bound.tensors, mu.shape[0]
        for name in ("mu", "speaker", "cond"):
            t[name][streams:].zero_()
        t["mu"][:streams].copy_(mu.transpose(1, 2))
        t["speaker"][:streams].copy_(speaker)
        if cond is None:
            t["cond"].zero_()
        else:
            t["cond"][:streams].copy_(cond.transpose(1, 2))
        _both(t["lengths"], batch.lengths)
        _both(t["prompt_valid"], valid_mask(batch.prompt_lengths, t["prompt_valid"].shape[1]))
        _both(t["window_valid"], valid_mask(batch.generated, t["window_valid"].shape[1]))
        t["prompt_row"][:streams].copy_(voices.row)
        torch.add(voices.row, streams, out=t["prompt_row"][streams:])

    def _fill_history(
        self, bound: BoundContext, step: int, batch: SolverBatch, voices: _Voices, pool: SolverPool
    ) -> None:
        t, streams = bound.tensors, batch.slots.shape[0]
        t["time"].fill_(self._times[step])
        gather_history(
            step, batch.prompts, batch.prompt_lengths, voices.is_first, pool.window, batch.slots, batch.generated,
            t["prompt_kv"], t["window_kv"],
        )  # fmt: skip
        # [B, L, convolution, cfg, column, C] to [L, cfg, B, convolution, C, column].
        held = pool.tails[:, step].index_select(0, batch.slots).permute(1, 3, 0, 2, 5, 4)
        t["tail"].view(held.shape[0], 2, streams, *held.shape[3:]).copy_(held)


def _pool_tails(tail: Tensor, streams: int) -> Tensor:
    """[L, 2B, 2C, column] as the pool keeps it: [B, L, convolution, cfg, column, C]."""
    parts = tail.view(tail.shape[0], 2, streams, CONVOLUTIONS, -1, tail.shape[-1])
    return parts.permute(2, 0, 3, 1, 5, 4)


def _both(target: Tensor, rows: Tensor) -> None:
    """Write [B, ...] to the conditional and to the unconditional rows."""
    target.view(2, *rows.shape).copy_(rows)


def _voices(prompts: Tensor) -> _Voices:
    """Find out on the device which rows share a voice."""
    index = torch.arange(prompts.shape[0], device=prompts.device)
    same = prompts[:, None] == prompts[None, :]
    row = torch.where(same, index[None, :], prompts.shape[0]).amin(1)
    return _Voices((row == index).long(), row)
