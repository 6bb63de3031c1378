"""The flows' solvers around a TensorRT estimator, for streams whose state lives in slots.

What the solvers of `runtime/slots/` compute. Nothing here waits for the GPU, and everything but the first use of a size
can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.graphs.catalogue import ROTARY_FRAMES
from token2wav_service.models.causal import valid_mask
from token2wav_service.models.flow.cfm import time_grid
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.slots.chunk_solver import ChunkSolver, FusedSolver, SolverBatch, SolverPool
from token2wav_service.runtime.tensorrt.planned import BoundContext, EstimatorSizes, PlannedEngine

UNPADDED = 0
"""Prompt size of batches that the fused kernels solve, because the engine is not prepared for their prompts."""


class PromptSizes:
    """The columns that a batch's prompts are padded to."""

    def __init__(self, sizes: Sequence[int], max_prompt_frames: int) -> None:
        """Keep the sizes.

        Args:
            sizes: that engines are prepared for, ascending.
            max_prompt_frames: longest prompt that may come.
        """
        self.all = (*sizes, *(() if sizes[-1] >= max_prompt_frames else (UNPADDED,)))

    def fitting(self, frames: int) -> int:
        """Return the columns for a longest prompt of `frames`."""
        return next((size for size in self.all if size >= frames), UNPADDED)


@dataclass(frozen=True)
class _Rows:
    """What the estimator reads of a batch; tensors [B] int64 on the device."""

    slots: Tensor
    prompts: Tensor
    prompt_lengths: Tensor
    generated: Tensor
    """Columns of each stream's own before this chunk."""
    lengths: Tensor
    more: dict[str, Tensor]
    """Inputs of one family's graph, by name."""


class _Steps:
    """Runs the estimator's engine over the solver's steps."""

    def __init__(self, estimator: PlannedEngine[EstimatorSizes], steps: int, guidance: float) -> None:
        self._estimator, self.count, self._guidance = estimator, steps, guidance
        grid = time_grid(steps)
        self._times, self._deltas = grid[:-1].tolist(), (grid[1:] - grid[:-1]).tolist()

    def bind(self, noise: Tensor, prompt_size: int, window: Tensor) -> BoundContext | None:
        """Return the engine's context for a batch's sizes; None if it was not planned for them."""
        sizes = EstimatorSizes(noise.shape[0], noise.shape[1], prompt_size, window.shape[-2])
        return self._estimator.bind(sizes) if sizes in self._estimator.sizes else None

    def solve(
        self, bound: BoundContext, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, rows: _Rows,
        window: Tensor, tails: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Solve one chunk of every stream.

        Args:
            noise: [B, T, 80] float32.
            mu: [B, T, 80]; speaker: [B, 80]; cond: [B, T, 80] or None for zero.
            window: [slots, n, L, 2, H, W, 2D] rings.
            tails: [B, n, G, 2, C, columns] that the convolutions continue from.

        Returns:
            Mel [B, T, 80] float32; what the chunk adds, [B, n, L, 2, H, T, 2D]; new tails, shaped as `tails`.
        """
        streams, frames, _ = noise.shape
        first = _FirstRows.of(rows.prompts)
        _fill_constants(bound, mu, speaker, cond, rows, first)
        x, velocity = (bound.tensors[name].view(2, streams, -1, frames) for name in ("x", "velocity"))
        tail, new_tail, chunk_kv = (_by_stream(bound.tensors[name]) for name in ("tail", "new_tail", "chunk_kv"))
        kv = chunk_kv.movedim(2, 0)
        own, new_tails = kv.new_empty(streams, self.count, *kv.shape[1:]), torch.empty_like(tails)
        x.copy_(noise.transpose(1, 2))
        for step in range(self.count):
            bound.tensors["time"].fill_(self._times[step])
            ops.gather_history(
                step, rows.prompts, rows.prompt_lengths, first.is_first, window, rows.slots, rows.generated,
                bound.tensors["prompt_kv"], bound.tensors["window_kv"],
            )  # fmt: skip
            tail.copy_(tails[:, step].movedim(0, 2))
            bound.run()
            conditional, unconditional = velocity
            guided = (1 + self._guidance) * conditional - self._guidance * unconditional
            x.add_(guided, alpha=self._deltas[step])
            own[:, step] = kv
            new_tails[:, step] = new_tail.movedim(2, 0)
        return x[0].transpose(1, 2).contiguous(), own, new_tails


class TensorRTSolver(ChunkSolver):
    """Solves chunks of streams; see `ChunkSolver`."""

    def __init__(
        self, estimator: PlannedEngine[EstimatorSizes], fused: FusedSolver, steps: int, guidance: float,
        prompts: PromptSizes,
    ) -> None:  # fmt: skip
        """Keep the parts; `fused` solves the chunks whose sizes the engine is not planned for, on the same pool."""
        self._steps, self._fused, self._prompts = _Steps(estimator, steps, guidance), fused, prompts
        self._has_positions = "first_frames" in estimator.names
        self.prompt_sizes = prompts.all

    def prompt_size(self, frames: int, end: int) -> int:
        """See `ChunkSolver`; a graph with positions knows none behind its table's last."""
        return UNPADDED if self._has_positions and end > ROTARY_FRAMES else self._prompts.fitting(frames)

    def allocate(self, slots: int, ring: int) -> SolverPool:
        """See `ChunkSolver`."""
        return self._fused.allocate(slots, ring)

    def place_tails(self, tails: Tensor) -> Tensor:
        """See `ChunkSolver`."""
        return self._fused.place_tails(tails)

    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch, pool: SolverPool
    ) -> Tensor:
        """See `ChunkSolver`."""
        bound = self._steps.bind(noise, batch.prompt_size, pool.window)
        if bound is None:
            return self._fused.solve(noise, mu, speaker, cond, batch, pool)
        at = batch.places
        block = {"committed": batch.committed, "first_frames": batch.first_frames}
        more = {name: values for name, values in block.items() if name in bound.tensors}
        rows = _Rows(at.slots, at.prompts, at.prompt_lengths, at.generated, at.lengths, more)
        held = pool.tails.index_select(0, at.slots)
        plain = self._fused.plain_tails(held.flatten(0, 1))
        tails = plain.view(*held.shape[:2], *plain.shape[1:])
        x, own, tails = self._steps.solve(bound, noise, mu, speaker, cond, rows, pool.window, tails)
        ops.commit_window(own, pool.window, at.slots, at.generated, batch.committed)
        pool.tails.index_copy_(0, at.slots, self._fused.place_tails(tails.flatten(0, 1)).reshape(held.shape))
        return x


@dataclass(frozen=True)
class _FirstRows:
    """Which rows bring a voice that no earlier row has."""

    is_first: Tensor
    """[B] int64, 1 or 0."""
    row: Tensor
    """[B] the row that brings this row's voice."""

    @classmethod
    def of(cls, prompts: Tensor) -> _FirstRows:
        """Find out on the device which rows share a voice's address."""
        index = torch.arange(prompts.shape[0], device=prompts.device)
        same = prompts[:, None] == prompts[None, :]
        row = torch.where(same, index[None, :], prompts.shape[0]).amin(1)
        return cls((row == index).long(), row)


def _fill_constants(
    bound: BoundContext, mu: Tensor, speaker: Tensor, cond: Tensor | None, rows: _Rows, first: _FirstRows
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
    for name, values in {"lengths": rows.lengths, **rows.more}.items():
        _both(t[name], values)
    _both(t["prompt_valid"], valid_mask(rows.prompt_lengths, t["prompt_valid"].shape[1]))
    _both(t["window_valid"], valid_mask(rows.generated, t["window_valid"].shape[1]))
    t["prompt_row"][:streams].copy_(first.row)
    torch.add(first.row, streams, out=t["prompt_row"][streams:])


def _by_stream(rows: Tensor) -> Tensor:
    """Return a view [G, 2, B, ...] of [G, 2B, ...]."""
    return rows.view(rows.shape[0], 2, -1, *rows.shape[2:])


def _both(target: Tensor, values: Tensor) -> None:
    """Write [B, ...] to the conditional and to the unconditional rows."""
    target.view(2, *values.shape).copy_(values)
