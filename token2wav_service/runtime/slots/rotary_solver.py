"""CosyVoice3's solver with everything constant taken out, on fused ops.

What `models/cfm.py` computes with `models/rotary_dit.py`, for states held in pools: modulations are tables made at
load, the parts of the input projection that do not change between steps are one product per chunk, the grouped
convolutions are products over windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.flow.cfm import ConditionalFlowMatching
from token2wav_service.models.flow.rotary_dit import CONV_GROUPS, LEFT_CONTEXT, MODULATIONS, RotaryDiT, rotation_table
from token2wav_service.runtime.kernels import attention_ops, ops, product_ops
from token2wav_service.runtime.slots.chunk_solver import (
    FusedSolver,
    HeadedRows,
    SolverBatch,
    SolverPool,
    affine_float,
    float_copy,
    pack_heads,
    pack_linear,
)

CONVOLUTIONS = 2


class RotarySolver(FusedSolver):
    """Solves chunks of many streams; see `ChunkSolver`."""

    def __init__(self, cfm: ConditionalFlowMatching[RotaryDiT], steps: int, dtype: torch.dtype) -> None:
        super().__init__(cfm, steps, dtype)
        dit, config = cfm.estimator, cfm.estimator.config
        self.config, self.tails = config, (CONVOLUTIONS, 2, config.dim, LEFT_CONTEXT)
        """Tails are [2 convolutions, 2 cfg, C, 30]."""
        blocks: list[Any] = list(dit.transformer_blocks)
        with torch.inference_mode():
            condition = functional.silu(float_copy(dit.time_embed)(self.times))
            tables = torch.stack([affine_float(block.attn_norm.linear, condition) for block in blocks], 1)
            self.modulations = tables.view(steps, config.depth, MODULATIONS, config.dim)
            """[n, L, 6, C] float32."""
            final = affine_float(dit.norm_out.linear, condition)
            self.final_modulations = final.view(steps, 2, config.dim)
            """Scale, then shift, of the final norm at each step."""
            weight, self.in_bias = pack_linear(dit.input_embed.proj, dtype)
            mel = config.mel_dim
            self.x_weight, self.constant_weight = weight[:, :mel].contiguous(), weight[:, mel:].contiguous()
            convs = dit.input_embed.conv_pos_embed
            self.convolutions = [_pack_grouped(conv[0], dtype) for conv in (convs.conv1, convs.conv2)]
            self.blocks = [_PackedBlock(block, dtype) for block in blocks]
            self.out_weight, self.out_bias = pack_linear(dit.proj_out, dtype)

    def place_tails(self, tails: Tensor) -> Tensor:
        """See `ChunkSolver`."""
        return tails.view(-1, 2, CONVOLUTIONS, self.config.dim, LEFT_CONTEXT).transpose(1, 2)

    def plain_tails(self, tails: Tensor) -> Tensor:
        """See `FusedSolver`."""
        return tails.transpose(1, 2).flatten(2, 3)[:, None]

    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch, pool: SolverPool
    ) -> Tensor:
        """See `ChunkSolver`."""
        assert cond is not None
        streams, frames, _ = noise.shape
        c = self.config
        rows = HeadedRows(c.depth, 2 * streams * frames, c.heads, c.head_dim, pool.tails, self.few_rows)
        constant = self.constant_part(cond, mu, speaker[:, None].expand(-1, frames, -1))
        angles = rotation_table(batch.first_frames, frames, c.head_dim, like=noise).contiguous()
        x, half = noise, noise.to(self.dtype)
        for step in self.run_steps:
            embedded = constant + functional.linear(half, self.x_weight)
            hidden = self._mix_neighbours(step, embedded.flatten(0, 1), batch, pool)
            velocity = self._estimate(step, hidden.flatten(0, 1), rows, angles, batch, pool, frames)
            rows.keep(step, batch, pool, frames)
            x, half = self.advance(step, x, velocity)
        return x

    def _mix_neighbours(self, step: int, embedded: Tensor, batch: SolverBatch, pool: SolverPool) -> Tensor:
        """Add the two position convolutions to [2B, T, C] float32, and keep their left contexts."""
        slots = batch.places.slots
        x = embedded.to(self.dtype)
        for index, (weight, bias) in enumerate(self.convolutions):
            tails = pool.tails[:, step, index]
            columns = attention_ops.lead_columns(x, tails, slots)
            attention_ops.keep_columns(columns, tails, slots, batch.committed)
            x = functional.mish(convolve_groups(columns, weight, bias))
        return embedded.add_(x)

    def _estimate(
        self,
        step: int,
        hidden: Tensor,
        rows: HeadedRows,
        angles: Tensor,
        batch: SolverBatch,
        pool: SolverPool,
        frames: int,
    ) -> Tensor:
        """Run all blocks at one solver step; hidden [2BT, C] is changed in place. Returns [2BT, 80]."""
        normed = torch.empty_like(hidden, dtype=self.dtype)
        branch: Tensor | None = None
        gate: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulations[step, layer]
            ops.residual_norm(hidden, branch, gate, scale_a, shift_a, normed, None, frames)
            product_ops.linear(normed, *block.qkv, is_few=False, out=rows.qkv[layer])
            attention_ops.rotate_first_head(rows.qkv[layer], angles, self.config.heads)
            branch = rows.attend(step, layer, batch, pool, frames, block.out)
            ops.residual_norm(hidden, branch, gate_a, scale_m, shift_m, normed, None, frames)
            branch = functional.linear(product_ops.linear_gelu(normed, *block.first, is_few=False), *block.second)
            gate = gate_m
        scale, shift = self.final_modulations[step]
        ops.residual_norm(hidden, branch, gate, scale, shift, normed, None, frames)
        return functional.linear(normed, self.out_weight, self.out_bias)


class _PackedBlock:
    """One block's weights."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        self.qkv = pack_heads(block.attn, dtype)
        self.out = pack_linear(block.attn.to_out[0], dtype)
        self.first, self.second = pack_linear(block.ff.ff[0][0], dtype), pack_linear(block.ff.ff[2], dtype)


def convolve_groups(columns: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve each group of channels as one product over windows.

    Args:
        columns: [B, K - 1 + T, C].
        weight: [G, K C/G, C/G].
        bias: [G, 1, C/G].

    Returns:
        [B, T, C].
    """
    groups, inner, width = weight.shape
    taps = inner // width
    streams, count, channels = columns.shape
    frames = count - taps + 1
    windows = columns.view(streams, count, groups, width).unfold(1, taps, 1)
    stacked = windows.permute(2, 0, 1, 4, 3).reshape(groups, streams * frames, inner)
    made = torch.baddbmm(bias, stacked, weight)
    return made.view(groups, streams, frames, width).permute(1, 2, 0, 3).reshape(streams, frames, channels)


def _pack_grouped(conv: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[C, C/G, K] of a grouped convolution as `convolve_groups` takes it."""
    out, width, taps = conv.weight.shape
    weight = conv.weight.view(CONV_GROUPS, out // CONV_GROUPS, width, taps).permute(0, 3, 2, 1)
    return weight.reshape(CONV_GROUPS, taps * width, -1).to(dtype), conv.bias.view(CONV_GROUPS, 1, -1).to(dtype)
