"""The DiT and its solver on CPU cores: all streams' frames in one matrix, without padding.

The arithmetic is that of `models.cfm` and `models.dit`; what is the same for every frame of a solver step (modulations)
or for every step of a chunk (the condition's part of the first layer) is computed once, and keys and values are read
where they lie. Rows of a matrix are frames: first those of all streams with the condition, then the same without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.flow.cfm import ConditionalFlowMatching, time_grid
from token2wav_service.models.flow.dit import MODULATIONS, DiT
from token2wav_service.runtime.cpu.column_store import Columns, ColumnStore

BRANCHES = 2
"""With the condition, and without it."""
CONTEXT = 2
"""Frames before its own that a convolution reads."""
_NORM_EPS = 1e-6
_TYPICAL_ROWS = 72
"""Rows that oneDNN chooses its layout of a weight for."""
_MISH_LINEAR_FROM = 20.0


def product_type() -> torch.dtype:
    """Return the type whose products these cores compute fastest: bfloat16 where they multiply tiles (AMX)."""
    return torch.bfloat16 if torch.cpu._is_amx_tile_supported() else torch.float32


class _Affine:
    """A product with a weight [outputs, inputs], and a bias [outputs]; in oneDNN's own layout where torch has it."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype = torch.float32) -> None:
        weight, self._bias = weight.detach().to(dtype), bias.detach().to(dtype)
        self._packed: Tensor | None = None
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
        else:
            self._columns = weight.t().contiguous()  # multiplies few rows faster

    def __call__(self, x: Tensor, *, gelu: bool = False) -> Tensor:
        """Return [N, outputs] of [N, inputs], in the weights' type; or GELU, in its tanh form, of that."""
        x = x.to(self._bias.dtype)
        if self._packed is not None:
            then: tuple[Any, ...] = ("gelu", [], "tanh") if gelu else ("none", [], "")
            return torch.as_tensor(torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, *then))
        made = torch.addmm(self._bias, x, self._columns)
        return functional.gelu(made, approximate="tanh") if gelu else made


class _Block:
    """One block's weights."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        attention, layers, mlp = block.attn, block.conv.block, block.mlp
        parts = (attention.to_q, attention.to_k, attention.to_v)
        weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        self.projections = _Affine(weight, bias, dtype)
        self.query_norm, self.key_norm = attention.q_norm, attention.k_norm
        self.output = _read(attention.proj, dtype)
        self.first_conv, self.second_conv = _read_conv(layers[1], dtype), _read_conv(layers[6], dtype)
        self.conv_norm = layers[3]
        self.expand, self.shrink = _read(mlp.fc1, dtype), _read(mlp.fc2, dtype)


@dataclass(frozen=True)
class _Modulation:
    """Of one norm: what scales and shifts it, and the gate of what comes of it; [C] each."""

    scale: Tensor
    shift: Tensor
    gate: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.scale, self.shift, _NORM_EPS)


@dataclass(frozen=True)
class _StepModulation:
    blocks: list[list[_Modulation]]
    """Each block's of attention, MLP and convolution."""
    scale: Tensor
    shift: Tensor


class _Layout:
    """Where every stream's frames lie, and what the convolutions gather."""

    def __init__(self, frames: Sequence[int]) -> None:
        """Lay streams of so many frames behind each other."""
        self.frames = list(frames)
        self.starts = [sum(self.frames[:index]) for index in range(len(self.frames))]
        self.total = sum(self.frames)
        windows, tails = zip(*(self._columns(index) for index in range(len(self.frames))), strict=True)
        window, tail = torch.cat(windows), torch.cat(tails)
        streams = len(self.frames)
        # The tails of both branches come first, then the frames of both.
        self.windows = torch.cat([self._of_branch(window, branch, streams) for branch in range(BRANCHES)]).flatten()
        self.tails = torch.cat([self._of_branch(tail, branch, streams) for branch in range(BRANCHES)]).flatten()

    def _columns(self, stream: int) -> tuple[Tensor, Tensor]:
        """Return [T, 3] columns that each frame's convolution reads and [1, 2] the new tail; below 0: of the old."""
        count, start = self.frames[stream], self.starts[stream]
        reached = torch.arange(-CONTEXT, count)
        column = torch.where(reached < 0, reached - CONTEXT * stream, reached + start)
        return column.unfold(0, CONTEXT + 1, 1), column[-CONTEXT:][None]

    def _of_branch(self, column: Tensor, branch: int, streams: int) -> Tensor:
        """Turn columns of one branch into rows of [tails | frames]; -1 and -2 of stream s are its two old columns."""
        old = -1 - column
        tail = (branch * streams + old // CONTEXT) * CONTEXT + (CONTEXT - 1 - old % CONTEXT)
        frame = BRANCHES * streams * CONTEXT + branch * self.total + column
        return torch.where(column < 0, tail, frame)


class PackedSolver:
    """Weights of a DiT and the modulations of every solver step, on the CPU."""

    def __init__(self, decoder: ConditionalFlowMatching[DiT], steps: int, dtype: torch.dtype) -> None:
        """Read the float32 weights of a decoder in eval mode, for `steps` Euler steps.

        The blocks' products and attention are computed in `dtype`; residual stream, norms and solver in float32.
        """
        estimator = decoder.estimator
        config = estimator.config
        self.steps, self.depth = steps, config.depth
        self.heads, self.head_dim, self.width = config.num_heads, config.head_dim, config.hidden_size
        self.guidance = decoder.guidance
        self.dtype = dtype
        self._blocks = [_Block(block, dtype) for block in estimator.blocks]
        self._grid = time_grid(steps).tolist()
        with torch.inference_mode():
            self._modulations = [_read_modulation(estimator, time) for time in self._grid[:-1]]
        self._velocity = _read(estimator.final_layer.linear)
        size = config.out_channels
        weight, bias = estimator.in_proj.weight.detach(), estimator.in_proj.bias.detach()
        self._noisy, self._condition, self._speaker = (
            weight[:, start : start + size].contiguous() for start in (0, size, 2 * size)
        )
        self._first_bias = bias

    def solve(
        self,
        noise: Tensor,
        mu: Tensor,
        speakers: Tensor,
        frames: Sequence[int],
        stores: Sequence[ColumnStore],
        tails: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Solve from t = 0 to 1 for streams of any lengths; appends their keys and values to the stores.

        Args:
            noise: [N, 80] standard normal, the streams' frames behind each other.
            mu: [N, 80] encoder projection.
            speakers: [S, 80] projected speaker vectors.
            frames: of each of the S streams; N in all.
            stores: earlier keys and values of each stream, in `dtype`, with room for `frames` more.
            tails: in `dtype` [n, L, 2 convolutions, 2 branches, S, 2, C] columns that the convolutions continue from.

        Returns:
            Mel [N, 80] and the new tails.
        """
        layout = _Layout(frames)
        spoken = functional.linear(speakers, self._speaker).repeat_interleave(torch.tensor(frames), 0)
        with_condition = functional.linear(mu, self._condition, self._first_bias) + spoken
        constant = torch.stack([with_condition, self._first_bias.expand_as(with_condition)])
        new_tails = torch.empty_like(tails, memory_format=torch.contiguous_format)
        # Of each convolution of a block: the columns [2 branches * S * 2, C] before the frames.
        places = (self.steps, self.depth, 2, -1, self.width)
        old, new = tails.reshape(places), new_tails.view(places)
        x = noise
        for step, modulation in enumerate(self._modulations):
            hidden = (constant + functional.linear(x, self._noisy)).flatten(0, 1)
            of_stores = [store.layers(step, count) for store, count in zip(stores, frames, strict=True)]
            of_layers = zip(zip(*of_stores, strict=True), old[step].unbind(), new[step].unbind(), strict=True)
            for block, of_block, of_layer in zip(self._blocks, modulation.blocks, of_layers, strict=True):
                hidden = self._run_block(block, of_block, hidden, layout, *of_layer)
            hidden = functional.layer_norm(hidden, hidden.shape[-1:], modulation.scale, modulation.shift, _NORM_EPS)
            given, free = self._velocity(hidden).chunk(BRANCHES)
            guided = (1 + self.guidance) * given - self.guidance * free
            x = x + (self._grid[step + 1] - self._grid[step]) * guided
        return x, new_tails

    def _run_block(
        self,
        block: _Block,
        modulations: Sequence[_Modulation],
        x: Tensor,
        layout: _Layout,
        places: Sequence[Columns],
        tails: Tensor,
        new_tails: Tensor,
    ) -> Tensor:
        attention, mlp, conv = modulations
        x = torch.addcmul(x, attention.gate, self._attend(block, attention(x), layout, places))
        columns = torch.cat([tails[0], conv(x).to(self.dtype)])
        inner = block.conv_norm(_convolved(block.first_conv, columns, layout, new_tails[0]).float())
        columns = torch.cat([tails[1], _mish(inner).to(self.dtype)])
        x = torch.addcmul(x, conv.gate, _convolved(block.second_conv, columns, layout, new_tails[1]))
        return torch.addcmul(x, mlp.gate, block.shrink(block.expand(mlp(x), gelu=True)))

    def _attend(self, block: _Block, x: Tensor, layout: _Layout, places: Sequence[Columns]) -> Tensor:
        """Let each stream's queries see its own history and frames; returns [2N, C]."""
        heads, size = self.heads, self.head_dim
        projected = block.projections(x).view(BRANCHES, layout.total, 3, heads, size)
        queries, keys, values = projected.unbind(2)
        of_all = (block.query_norm(queries), block.key_norm(keys), values)  # [2, N, h, d]
        parts = (each.transpose(1, 2).split_with_sizes(layout.frames, 2) for each in of_all)
        mixed = []
        for columns, query, key, value in zip(places, *parts, strict=True):
            columns.new_keys.copy_(key)
            columns.new_values.copy_(value)
            mixed.append(functional.scaled_dot_product_attention(query, columns.keys, columns.values))
        joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed, 2)
        return block.output(joined.transpose(1, 2).reshape(BRANCHES * layout.total, heads * size))


def _convolved(conv: _Affine, columns: Tensor, layout: _Layout, new_tails: Tensor) -> Tensor:
    """Return the causal convolution [2N, C] of rows [tails | frames]; writes the tails of the next chunk."""
    torch.index_select(columns, 0, layout.tails, out=new_tails)
    return conv(columns.index_select(0, layout.windows).view(-1, (CONTEXT + 1) * columns.shape[1]))


def _mish(x: Tensor) -> Tensor:
    """Return x tanh(log(1 + e^x)) by e^x alone."""
    power = x.clamp(max=_MISH_LINEAR_FROM).exp_()
    power = (power + 2).mul_(power)
    return power.div_(power + 2).mul_(x)


def _read(linear: nn.Linear, dtype: torch.dtype = torch.float32) -> _Affine:
    return _Affine(linear.weight, linear.bias, dtype)


def _read_conv(conv: nn.Conv1d, dtype: torch.dtype) -> _Affine:
    assert conv.bias is not None
    return _Affine(conv.weight.permute(0, 2, 1).flatten(1), conv.bias, dtype)


def _read_modulation(estimator: DiT, time: float) -> _StepModulation:
    condition = functional.silu(estimator.t_embedder(torch.tensor([time])))
    blocks = []
    layers: list[Any] = list(estimator.blocks)
    for block in layers:
        parts = iter(block.adaLN_modulation[1](condition)[0].chunk(MODULATIONS))
        triples = zip(parts, parts, parts, strict=True)
        blocks.append([_Modulation(1 + scale, shift, gate) for shift, scale, gate in triples])
    shift, scale = estimator.final_layer.adaLN_modulation[1](condition)[0].chunk(2)
    return _StepModulation(blocks, 1 + scale, shift)
