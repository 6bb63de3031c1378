"""Step-Audio2's solver with everything constant taken out, on fused ops.

What `models/flow/cfm.py` computes with `models/flow/dit.py`, for states held in pools: modulations are tables made at
load, the parts of the input projection that do not change between steps are one product per chunk, convolutions are
products over shifted rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.flow.cfm import ConditionalFlowMatching
from token2wav_service.models.flow.dit import MODULATIONS, DiT
from token2wav_service.runtime.kernels import attention_ops, ops, product_ops
from token2wav_service.runtime.kernels.attention_ops import HeadNorms, KeyPlaces
from token2wav_service.runtime.slots.chunk_solver import (
    FusedSolver,
    SolverBatch,
    SolverPool,
    affine_float,
    float_copy,
    float_norm,
    pack_heads,
    pack_linear,
    shifted_weight,
)

CONVOLUTIONS = 2


class DiTSolver(FusedSolver):
    """Solves chunks of many streams; see `ChunkSolver`."""

    def __init__(self, cfm: ConditionalFlowMatching[DiT], steps: int, dtype: torch.dtype) -> None:
        super().__init__(cfm, steps, dtype)
        dit, config = cfm.estimator, cfm.estimator.config
        self.config, self.tails = config, (config.depth, CONVOLUTIONS, 2, 2, config.hidden_size)
        """Tails are [L, 2 convolutions, 2 cfg, 2 columns, C]."""
        with torch.inference_mode():
            condition = functional.silu(float_copy(dit.t_embedder)(self.times))
            blocks: list[Any] = list(dit.blocks)
            tables = torch.stack([affine_float(block.adaLN_modulation[1], condition) for block in blocks], 1)
            self.modulations = tables.view(steps, config.depth, MODULATIONS, config.hidden_size)
            final_layer: Any = dit.final_layer
            final = affine_float(final_layer.adaLN_modulation[1], condition)
            self.final_modulations = final.view(steps, 2, config.hidden_size)
            mel = config.out_channels
            weight = dit.in_proj.weight.to(dtype)
            self.x_weight, self.constant_weight = weight[:, :mel].contiguous(), weight[:, mel:].contiguous()
            self.in_bias = dit.in_proj.bias.to(dtype)
            self.blocks = [_PackedBlock(block, dtype) for block in blocks]
            self.out = pack_linear(final_layer.linear, dtype)
        whole = [each for block in self.blocks for each in (block.qkv, block.fc1)]
        in_parts = [each for block in self.blocks for each in (block.proj, block.conv1, block.conv2, block.fc2)]
        self.few_rows = product_ops.most_rows(whole, in_parts, product_ops.FEW_ROWS)

    def place_tails(self, tails: Tensor) -> Tensor:
        """See `ChunkSolver`."""
        return tails.view(*tails.shape[:3], CONVOLUTIONS, -1, tails.shape[4]).permute(0, 1, 3, 2, 5, 4)

    def plain_tails(self, tails: Tensor) -> Tensor:
        """See `FusedSolver`."""
        return tails.permute(0, 1, 3, 2, 5, 4).flatten(3, 4)

    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch, pool: SolverPool
    ) -> Tensor:
        """See `ChunkSolver`."""
        at = batch.places
        mel, own, tails = self.compute(noise, mu, speaker, cond, at, pool)
        ops.commit_window(own, pool.window, at.slots, at.generated, batch.committed)
        pool.tails.index_copy_(0, at.slots, tails)
        return mel

    def compute(
        self,
        noise: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor | None,
        places: KeyPlaces,
        pool: SolverPool,
        own: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve one chunk of every stream, whose whole length counts, and leave the pool as it is.

        Args:
            noise, mu, speaker, cond: as in `solve`.
            places: of the keys.
            pool: what the streams continue from.
            own: where the chunk's keys and values go, contiguous; None allocates it.

        Returns:
            Mel [B, T, 80] float32, the chunk's keys and values [B, n, L, 2, H, T, 2D], and the new convolution
            tails [B, n, L, 2, 2, 2, C].
        """
        streams, frames, _ = noise.shape
        c = self.config
        work = _Workspace(2 * streams * frames, c.hidden_size, c.num_heads * c.head_dim, self.dtype, self.device)
        if own is None:
            shape = (streams, self.steps, c.depth, 2, c.num_heads, frames, 2 * c.head_dim)
            own = noise.new_empty(shape, dtype=self.dtype)
        tails = noise.new_empty(streams, *pool.tails.shape[1:], dtype=self.dtype)
        cond = torch.zeros_like(mu) if cond is None else cond
        constant = self.constant_part(mu, speaker[:, None].expand(-1, frames, -1), cond)
        x, half = noise, noise.to(self.dtype)
        for step in self.run_steps:
            hidden = (constant + functional.linear(half, self.x_weight)).flatten(0, 2)
            velocity = self._estimate(step, hidden, work, own, tails, places, pool, frames)
            x, half = self.advance(step, x, velocity)
        return x, own, tails

    def _estimate(
        self,
        step: int,
        hidden: Tensor,
        work: _Workspace,
        own: Tensor,
        tails: Tensor,
        places: KeyPlaces,
        pool: SolverPool,
        frames: int,
    ) -> Tensor:
        """Run all blocks at one solver step; hidden [2BT, C] is changed in place. Returns [2BT, 80]."""
        branch: Tensor | None = None
        gate: Tensor | None = None
        heads = self.config.num_heads
        planes = 2 * heads
        few = hidden.shape[0] <= self.few_rows
        for layer, block in enumerate(self.blocks):
            shift_a, scale_a, gate_a, shift_m, scale_m, gate_m, shift_c, scale_c, gate_c = self.modulations[step, layer]
            ops.residual_norm(hidden, branch, gate, scale_a, shift_a, work.normed, None, frames, overlaps=few)
            qkv = product_ops.linear(work.normed, *block.qkv, is_few=few)
            pieces = attention_ops.attend(
                qkv, heads, pool.window[:, step, layer], (step * self.config.depth + layer) * planes, places, frames,
                work.attended, norms=HeadNorms(block.norms, own[:, step, layer]), combines=not few, overlaps=few,
            )  # fmt: skip
            branch = product_ops.linear_of_attention(pieces, work.attended, *block.proj, is_few=few)
            first, second = (
                ops.ConvolutionTails(
                    places.slots, places.lengths, pool.tails[:, step, layer, index], tails[:, step, layer, index]
                )
                for index in range(CONVOLUTIONS)
            )
            ops.residual_norm(hidden, branch, gate_a, scale_c, shift_c, work.shifted, first, frames, overlaps=few)
            convolved = product_ops.linear_in_parts(work.shifted, *block.conv1, is_few=few)
            ops.norm_mish(convolved, *block.conv_norm, work.shifted, second, frames, overlaps=few)
            branch = product_ops.linear_in_parts(work.shifted, *block.conv2, is_few=few)
            ops.residual_norm(hidden, branch, gate_c, scale_m, shift_m, work.normed, None, frames, overlaps=few)
            widened = product_ops.linear_gelu(work.normed, *block.fc1, is_few=few)
            branch = product_ops.linear_in_parts(widened, *block.fc2, is_few=few)
            gate = gate_m
        shift, scale = self.final_modulations[step]
        ops.residual_norm(hidden, branch, gate, scale, shift, work.normed, None, frames, overlaps=few)
        return product_ops.linear(work.normed, *self.out, is_few=few)


class _Workspace:
    """Buffers that every block of every step uses again."""

    def __init__(self, rows: int, hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> None:
        self.normed = torch.empty(rows, hidden, dtype=dtype, device=device)
        self.shifted = torch.empty(rows, 3 * hidden, dtype=dtype, device=device)
        self.attended = torch.empty(rows, inner, dtype=dtype, device=device)


class _PackedBlock:
    """One block's weights and biases in the layouts of the fused path."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        attn, conv, mlp = block.attn, block.conv.block, block.mlp
        self.qkv = pack_heads(attn, dtype)
        self.norms = (*float_norm(attn.q_norm), *float_norm(attn.k_norm))
        self.proj = pack_linear(attn.proj, dtype)
        self.conv1 = shifted_weight(conv[1], dtype)
        self.conv_norm = float_norm(conv[3])
        self.conv2 = shifted_weight(conv[6], dtype)
        self.fc1, self.fc2 = pack_linear(mlp.fc1, dtype), pack_linear(mlp.fc2, dtype)
