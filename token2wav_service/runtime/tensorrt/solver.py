"""The flows' solvers around a TensorRT estimator, for streams whose state lives in slots.

What the solvers of `runtime/slots/` compute. Nothing here waits for the GPU, and everything but the first use of a size
can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from token2wav_service.graphs import ROTARY_FRAMES
from token2wav_service.models.causal import valid_mask
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.slots.chunk_solver import ChunkSolver, FusedSolver, SolverBatch, SolverPool
from token2wav_service.runtime.tensorrt.planned import BoundContext, PlannedEngine, estimator_axes

PROMPT_SIZES = (300, 900)
"""Mel frames (50 Hz) that a batch's prompts are padded to, the first that holds them; no prompt is longer."""
UNPADDED = 0
"""Prompt size of batches that the fused kernels solve, because they end behind the engine's table of positions."""


class TensorRTSolver(ChunkSolver):
    """Solves chunks of streams; see `ChunkSolver`."""

    prompt_sizes = PROMPT_SIZES

    def __init__(self, estimator: PlannedEngine, fused: FusedSolver) -> None:
        """Keep what computes the velocity, and what solves, on the same pool, chunks of sizes that are not planned."""
        self._estimator, self._fused = estimator, fused
        self._times = fused.times.tolist()

    def prompt_size(self, frames: int, end: int) -> int:
        """See `ChunkSolver`; a graph with positions knows none behind its table's last."""
        if "first_frames" in self._estimator.names and end > ROTARY_FRAMES:
            return UNPADDED
        return next(size for size in self.prompt_sizes if size >= frames)

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
        sizes = estimator_axes(noise.shape[0], noise.shape[1], batch.prompt_size, pool.window.shape[-2])
        if sizes not in self._estimator.sizes:
            return self._fused.solve(noise, mu, speaker, cond, batch, pool)
        bound, at = self._estimator.bind(sizes), batch.places
        held = pool.tails.index_select(0, at.slots)
        plain = self._fused.plain_tails(held.flatten(0, 1))
        tails = plain.view(*held.shape[:2], *plain.shape[1:])
        _fill_constants(bound, mu, speaker, cond, batch)
        mel, own, tails = self._solve(bound, noise, batch, pool.window, tails)
        ops.commit_window(own, pool.window, at.slots, at.generated, batch.committed)
        pool.tails.index_copy_(0, at.slots, self._fused.place_tails(tails.flatten(0, 1)).reshape(held.shape))
        return mel

    def _solve(
        self, bound: BoundContext, noise: Tensor, batch: SolverBatch, window: Tensor, tails: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the engine over the solver's steps.

        Args:
            noise: [B, T, 80] float32.
            window: [slots, n, L, 2, H, W, 2D] rings.
            tails: [B, n, G, 2, C, columns] that the convolutions continue from.

        Returns:
            Mel [B, T, 80] float32; what the chunk adds, [B, n, L, 2, H, T, 2D]; new tails, shaped as `tails`.
        """
        streams, frames, _ = noise.shape
        at, t, guidance = batch.places, bound.tensors, self._fused.guidance
        is_first, _ = _first_rows(at.prompts)
        x, velocity = (t[name].view(2, streams, -1, frames) for name in ("x", "velocity"))
        tail, new_tail, chunk_kv = (_by_stream(t[name]) for name in ("tail", "new_tail", "chunk_kv"))
        kv = chunk_kv.movedim(2, 0)
        own, new_tails = kv.new_empty(streams, self._fused.steps, *kv.shape[1:]), torch.empty_like(tails)
        x.copy_(noise.transpose(1, 2))
        for step, delta in enumerate(self._fused.deltas):
            t["time"].fill_(self._times[step])
            ops.gather_history(
                step, at.prompts, at.prompt_lengths, is_first, window, at.slots, at.generated, t["prompt_kv"],
                t["window_kv"],
            )  # fmt: skip
            tail.copy_(tails[:, step].movedim(0, 2))
            bound.run()
            conditional, unconditional = velocity
            x.add_((1 + guidance) * conditional - guidance * unconditional, alpha=delta)
            own[:, step] = kv
            new_tails[:, step] = new_tail.movedim(2, 0)
        return x[0].transpose(1, 2).contiguous(), own, new_tails


def _first_rows(prompts: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] int64, 1 where no earlier row brings the same voice's address, and [B] the row that brings it."""
    index = torch.arange(prompts.shape[0], device=prompts.device)
    same = prompts[:, None] == prompts[None, :]
    row = torch.where(same, index[None, :], prompts.shape[0]).amin(1)
    return (row == index).long(), row


def _fill_constants(bound: BoundContext, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch) -> None:
    """Write what is the same at every step; unconditional rows see no mu, speaker or condition."""
    t, streams, at = bound.tensors, mu.shape[0], batch.places
    for name in ("mu", "speaker", "cond"):
        t[name][streams:].zero_()
    t["mu"][:streams].copy_(mu.transpose(1, 2))
    t["speaker"][:streams].copy_(speaker)
    if cond is None:
        t["cond"].zero_()
    else:
        t["cond"][:streams].copy_(cond.transpose(1, 2))
    for name, values in {
        "lengths": at.lengths,
        "committed": batch.committed,
        "first_frames": batch.first_frames,
    }.items():
        if name in t:
            _both(t[name], values)
    _both(t["prompt_valid"], valid_mask(at.prompt_lengths, t["prompt_valid"].shape[1]))
    _both(t["window_valid"], valid_mask(at.generated, t["window_valid"].shape[1]))
    _, row = _first_rows(at.prompts)
    t["prompt_row"][:streams].copy_(row)
    torch.add(row, streams, out=t["prompt_row"][streams:])


def _by_stream(rows: Tensor) -> Tensor:
    """Return a view [G, 2, B, ...] of [G, 2B, ...]."""
    return rows.view(rows.shape[0], 2, -1, *rows.shape[2:])


def _both(target: Tensor, values: Tensor) -> None:
    """Write [B, ...] to the conditional and to the unconditional rows."""
    target.view(2, *values.shape).copy_(values)
