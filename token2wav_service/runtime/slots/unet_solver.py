"""CosyVoice2's solver with everything constant taken out, on fused ops.

What `models/flow/cfm.py` computes with `models/flow/unet.py`, for states held in pools: what the time adds to the
residual blocks is a table made at load, convolutions are products over shifted rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.flow.cfm import ConditionalFlowMatching
from token2wav_service.models.flow.unet import KERNEL, LEFT_CONTEXT, UNet
from token2wav_service.runtime.kernels import ops, product_ops
from token2wav_service.runtime.slots.chunk_solver import (
    FusedSolver,
    HeadedRows,
    SolverBatch,
    SolverPool,
    affine_float,
    float_copy,
    float_norm,
    pack_heads,
    pack_linear,
    shifted_weight,
)

NORM_EPS = 1e-5
CFG_HALVES = 2
FEW_ROWS = 480
"""Rows up to which the kernels for few rows are the faster ones: 15 tokens of each of eight streams."""


class UNetSolver(FusedSolver):
    """Solves chunks of many streams; see `ChunkSolver`."""

    def __init__(self, cfm: ConditionalFlowMatching[UNet], steps: int, dtype: torch.dtype) -> None:
        super().__init__(cfm, steps, dtype)
        unet, config = cfm.estimator, cfm.estimator.config
        self.config, self.tails = config, (CFG_HALVES * LEFT_CONTEXT * config.tail_channels,)
        """Tails are those of every convolution, [2 cfg, 2 columns, C], one after another."""
        stages: list[Any] = [unet.down_blocks[0], *unet.mid_blocks, unet.up_blocks[0]]
        with torch.inference_mode():
            embedded = functional.mish(float_copy(unet.time_mlp)(self.times))
            self.projections = torch.stack([affine_float(stage.resnet.mlp[1], embedded) for stage in stages], 1)
            """[n, stages, C] float32 projections of the time for each resnet."""
            self.stages = [_PackedStage(stage, dtype) for stage in stages]
            final: Any = unet.final_block
            self.down_conv, self.up_conv = (shifted_weight(stages[i].conv, dtype) for i in (0, -1))
            self.final_conv, self.final_norm = shifted_weight(final.block[0], dtype), float_norm(final.block[2])
            self.final = pack_linear(unet.final_proj, dtype)
        layers = [layer for stage in self.stages for layer in stage.layers]
        whole: list[product_ops.Affine] = [self.final, *(stage.residual for stage in self.stages)]
        whole += [pair for layer in layers for pair in (layer.qkv, layer.first)]
        in_parts = [pair for stage in self.stages for pair in (stage.conv1, stage.conv2)]
        in_parts += [self.final_conv, *(pair for layer in layers for pair in (layer.out, layer.second))]
        self.few_rows = product_ops.most_rows(whole, in_parts, FEW_ROWS)
        widths = [config.in_channels, *[config.channels] * (2 + 2 * config.num_mid_blocks)]
        self.widths = [*widths, 2 * config.channels, *[config.channels] * 3]
        """Input channels of each convolution, in the order in which they run."""

    def place_tails(self, tails: Tensor) -> Tensor:
        """See `ChunkSolver`."""
        parts = torch.split(tails[:, 0], self.widths, 2)
        return torch.cat([part.transpose(2, 3).flatten(1) for part in parts], 1)

    def plain_tails(self, tails: Tensor) -> Tensor:
        """See `FusedSolver`."""
        parts = torch.split(tails, [CFG_HALVES * LEFT_CONTEXT * width for width in self.widths], 1)
        shaped = (part.view(len(part), CFG_HALVES, LEFT_CONTEXT, -1).transpose(2, 3) for part in parts)
        return torch.cat(list(shaped), 2)[:, None]

    def solve(
        self, noise: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor | None, batch: SolverBatch, pool: SolverPool
    ) -> Tensor:
        """See `ChunkSolver`."""
        assert cond is not None
        streams, frames, mel = noise.shape
        c = self.config
        rows = HeadedRows(c.num_layers, 2 * streams * frames, c.num_heads, c.head_dim, pool.tails, self.few_rows)
        new_tails = pool.tails.new_empty(streams, *pool.tails.shape[1:])
        constants = torch.cat([mu, speaker[:, None].expand(-1, frames, -1), cond], -1).to(self.dtype)
        inputs = self._inputs(constants, mel)
        x, half = noise, noise.to(self.dtype)
        for step in self.run_steps:
            inputs[..., :mel] = half
            tails = self._tails(step, batch, pool, new_tails)
            velocity = _Pass(self, step, rows, tails, batch, pool, frames).run(inputs.flatten(0, 2))
            rows.keep(step, batch, pool, frames)
            x, half = self.advance(step, x, velocity)
        # A chunk that completes no block leaves the tails as they were.
        slots = batch.places.slots
        is_kept = (batch.committed > 0)[:, None, None]
        pool.tails.index_copy_(0, slots, torch.where(is_kept, new_tails, pool.tails.index_select(0, slots)))
        return x

    def _inputs(self, constants: Tensor, mel: int) -> Tensor:
        """[2, B, T, 4 mel]: what the first convolution reads, the channels of x still empty."""
        streams, frames, channels = constants.shape
        inputs = constants.new_zeros(CFG_HALVES, streams, frames, mel + channels)
        inputs[0, :, :, mel:] = constants
        return inputs

    def _tails(
        self, step: int, batch: SolverBatch, pool: SolverPool, new_tails: Tensor
    ) -> Iterator[ops.ConvolutionTails]:
        """Give every convolution its tails, in the order in which they run."""
        begin = 0
        for width in self.widths:
            size = CFG_HALVES * LEFT_CONTEXT * width
            old, new = (
                tails[:, step, begin : begin + size].view(-1, CFG_HALVES, LEFT_CONTEXT, width)
                for tails in (pool.tails, new_tails)
            )
            yield ops.ConvolutionTails(batch.places.slots, batch.committed, old, new)
            begin += size


class _Pass:
    """One evaluation of the estimator: its way through layers and tails."""

    def __init__(
        self,
        solver: UNetSolver,
        step: int,
        rows: HeadedRows,
        tails: Iterator[ops.ConvolutionTails],
        batch: SolverBatch,
        pool: SolverPool,
        frames: int,
    ) -> None:
        self._solver, self._step, self._rows, self._tails, self._few = solver, step, rows, tails, rows.is_few
        self._batch, self._pool, self._frames = batch, pool, frames
        self._layer = 0

    def run(self, inputs: Tensor) -> Tensor:
        """Map [2BT, 320] to the velocity [2BT, 80]."""
        s = self._solver
        branch: Tensor | None
        hidden, added = self._stage(0, inputs, None)
        shifted = self._shift(hidden, added)
        skip = shifted[:, -hidden.shape[1] :]
        hidden, branch = functional.linear(shifted, *s.down_conv), None
        for index in range(1, len(s.stages) - 1):
            hidden, branch = self._stage(index, hidden, branch)
        middle = hidden if branch is None else hidden + (branch.sum(0) if branch.dim() > 2 else branch)
        hidden, added = self._stage(-1, torch.cat([middle.to(s.dtype), skip], 1), None)
        hidden = functional.linear(self._shift(hidden, added), *s.up_conv)
        convolved = product_ops.linear_in_parts(self._shift(hidden, None), *s.final_conv, is_few=self._few)
        out = torch.empty_like(hidden)
        ops.norm_mish(convolved, *s.final_norm, out, None, self._frames, overlaps=self._few)
        return product_ops.linear(out, *s.final, is_few=self._few)

    def _shift(self, x: Tensor, branch: Tensor | None) -> Tensor:
        """[2BT, 3C] of x + branch for the next convolution."""
        shifted = x.new_empty(x.shape[0], KERNEL * x.shape[1], dtype=self._solver.dtype)
        ops.shift_rows(x, branch, shifted, next(self._tails), self._frames, overlaps=self._few)
        return shifted

    def _stage(self, index: int, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run a residual block and its transformer layers; returns [2BT, C] float32 and what is still to be added."""
        s, stage, few = self._solver, self._solver.stages[index], self._few
        shifted = self._shift(x, branch)
        convolved = product_ops.linear_in_parts(shifted, *stage.conv1, is_few=few)
        again = shifted.new_empty(len(shifted), KERNEL * convolved.shape[-1])
        added = s.projections[self._step, index]
        ops.norm_mish(convolved, *stage.norm1, again, next(self._tails), self._frames, added=added, overlaps=few)
        convolved = product_ops.linear_in_parts(again, *stage.conv2, is_few=few)
        residual = product_ops.linear(shifted[:, -x.shape[1] :], *stage.residual, is_few=few)
        hidden = torch.empty_like(residual, dtype=torch.float32)
        ops.norm_mish(convolved, *stage.norm2, hidden, None, self._frames, added=residual, overlaps=few)
        return hidden, self._layers(stage, hidden)

    def _layers(self, stage: _PackedStage, hidden: Tensor) -> Tensor:
        """Run the transformer layers on hidden, changed in place; returns what is still to be added."""
        normed, few, frames = torch.empty_like(hidden, dtype=self._solver.dtype), self._few, self._frames
        branch: Tensor | None = None
        for layer in stage.layers:
            index, self._layer = self._layer, self._layer + 1
            ops.residual_norm(hidden, branch, None, *layer.norm1, normed, None, frames, NORM_EPS, overlaps=few)
            product_ops.linear(normed, *layer.qkv, is_few=few, out=self._rows.qkv[index])
            branch = self._rows.attend(self._step, index, self._batch, self._pool, frames, layer.out)
            ops.residual_norm(hidden, branch, None, *layer.norm3, normed, None, frames, NORM_EPS, overlaps=few)
            inner = product_ops.linear_gelu(normed, *layer.first, is_few=few, is_exact=True)
            branch = product_ops.linear_in_parts(inner, *layer.second, is_few=few)
        assert branch is not None
        return branch


class _PackedStage:
    """One stage's weights."""

    def __init__(self, stage: Any, dtype: torch.dtype) -> None:
        resnet = stage.resnet
        self.conv1, self.norm1 = shifted_weight(resnet.block1.block[0], dtype), float_norm(resnet.block1.block[2])
        self.conv2, self.norm2 = shifted_weight(resnet.block2.block[0], dtype), float_norm(resnet.block2.block[2])
        self.residual = pack_linear(resnet.res_conv, dtype)
        self.layers = [_PackedLayer(layer, dtype) for layer in stage.layers]


class _PackedLayer:
    """One transformer layer's weights; scales less one, as `residual_norm` takes them."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        self.norm1, self.norm3 = ((weight - 1, bias) for weight, bias in map(float_norm, (layer.norm1, layer.norm3)))
        self.qkv = pack_heads(layer.attn1, dtype)
        self.out = pack_linear(layer.attn1.to_out[0], dtype)
        self.first, self.second = pack_linear(layer.ff.net[0].proj, dtype), pack_linear(layer.ff.net[2], dtype)
