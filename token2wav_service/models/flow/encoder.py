"""Conformer encoder: embedded speech tokens at 25 Hz to hidden frames at 50 Hz, whole or in chunks.

It knows nothing of token ids, voices or mel; its state is passed in and out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import (
    AttentionPlan,
    CacheSpec,
    PreLookahead,
    causal_tail,
    chunk_plan,
    empty_caches,
    relative_sinusoids,
    valid_mask,
)
from token2wav_service.models.config import EncoderConfig

LAYER_NORM_EPS = 1e-12
"""Epsilon of the blocks' own norms; embed and after_norm use 1e-5."""


@dataclass(frozen=True)
class EncoderPlans:
    """Attention plans of the two rates; given by callers who want another mask than a chunk's own."""

    tokens: AttentionPlan
    frames: AttentionPlan


class _Embed(nn.Module):
    """Linear, LayerNorm, then times sqrt(width)."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(input_size, output_size), nn.LayerNorm(output_size, eps=1e-5))
        self.scale = math.sqrt(output_size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.out(x) * self.scale)


class _RelativeAttention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.output_size
        self.heads, self.head_dim = config.attention_heads, config.head_dim
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width, bias=config.key_bias)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.heads, self.head_dim))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.heads, self.head_dim))

    def forward(self, x: Tensor, plan: AttentionPlan, sinusoids: Tensor, history_kv: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to [history | x]; returns the output and this chunk's [B, h, T, 2d] keys and values."""
        q, k, v = (self._split(layer(x)) for layer in (self.linear_q, self.linear_k, self.linear_v))
        own_kv = torch.cat([k, v], -1)
        keys, values = torch.cat([history_kv, own_kv], 2).chunk(2, -1)
        positions = self.linear_pos(sinusoids).view(-1, self.heads, self.head_dim)
        by_distance = torch.einsum("bhqd,rhd->bhqr", q + self.pos_bias_v[:, None], positions)
        index = (plan.relative - plan.relative_min).expand(*by_distance.shape[:2], -1, -1)
        bias = by_distance.gather(3, index) / math.sqrt(self.head_dim)
        bias = bias.masked_fill(~plan.mask, float("-inf"))
        mixed = functional.scaled_dot_product_attention(q + self.pos_bias_u[:, None], keys, values, attn_mask=bias)
        return self.linear_out(mixed.transpose(1, 2).flatten(2)), own_kv

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, self.head_dim).transpose(1, 2)


class _FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, hidden)
        self.w_2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.w_2(functional.silu(self.w_1(x))))


class _Block(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = _RelativeAttention(config)
        self.feed_forward = _FeedForward(config.output_size, config.linear_units)
        self.norm_mha = nn.LayerNorm(config.output_size, eps=LAYER_NORM_EPS)
        self.norm_ff = nn.LayerNorm(config.output_size, eps=LAYER_NORM_EPS)

    def forward(self, x: Tensor, plan: AttentionPlan, sinusoids: Tensor, history_kv: Tensor) -> tuple[Tensor, Tensor]:
        attended, own_kv = self.self_attn(self.norm_mha(x), plan, sinusoids, history_kv)
        x = x + attended
        return x + self.feed_forward(self.norm_ff(x)), own_kv


class _Upsample(nn.Module):
    KERNEL = 5

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(channels, channels, self.KERNEL)

    def forward(self, x: Tensor, lengths: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        columns = torch.cat([tail, x.transpose(1, 2).repeat_interleave(self.factor, dim=2)], 2)
        return self.conv(columns).transpose(1, 2), causal_tail(columns, lengths * self.factor, tail.shape[2])


class ConformerEncoder(nn.Module):
    """The upstream UpsampleConformerEncoderV2, with its parameter names.

    Source: specification section 4; relative positions in closed form, so any history length works.
    """

    UPSAMPLE_CONTEXT = _Upsample.KERNEL - 1
    """Frames that the upsampling convolution sees before its own."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.output_size
        self.embed = _Embed(config.input_size, width)
        self.pre_lookahead_layer = PreLookahead(width, width, config.pre_lookahead_len)
        self.encoders = nn.ModuleList(_Block(config) for _ in range(config.num_blocks))
        self.up_layer = _Upsample(width, config.up_stride)
        self.up_embed = _Embed(config.input_size, width)
        self.up_encoders = nn.ModuleList(_Block(config) for _ in range(config.num_up_blocks))
        self.after_norm = nn.LayerNorm(width, eps=1e-5)

    def forward(
        self,
        x: Tensor,
        lengths: Tensor,
        is_last: Tensor,
        caches: Mapping[str, Tensor] | None = None,
        held: Tensor | None = None,
        *,
        block: int | None = None,
        plans: EncoderPlans | None = None,
        size: int | None = None,
        committed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Encode one chunk of every row, or the whole utterance (no history, last).

        Args:
            x: [B, N, C] embedded tokens, padded on the right; unless a row is last, its final
                `pre_lookahead_len` valid tokens are context only.
            lengths: [B] valid tokens per row, look-ahead included.
            is_last: [B] bool; a last row's look-ahead is silence.
            caches: what earlier chunks left, as `state_specs` describes it, padded to one batch (history aligned to
                the right on time); None starts from nothing.
            held: [B] tokens per row that the caches hold.
            block: tokens in a block, beyond whose end no query of it looks; None shows the whole chunk.
            plans: attention to use instead of [history | own chunk].
            size: T, where the caller knows it; None reads it from `is_last`.
            committed: [B] tokens per row after which the convolution tails are taken; None is all without look-ahead.

        Returns:
            Hidden frames [B, 2T, C] where T is the longest row without look-ahead; [B] valid frames per row;
            what the chunk adds to each cache, padded on the right.
        """
        spoken = torch.where(is_last, lengths, lengths - self.config.pre_lookahead_len)
        if size is None:
            # No longer than the input: a non-last batch needs no padding columns for its look-ahead.
            size = x.shape[1] if bool(is_last.any()) else x.shape[1] - self.config.pre_lookahead_len
        committed = spoken if committed is None else committed
        caches = empty_caches(self.state_specs(), x) if caches is None else caches
        held = torch.zeros_like(lengths) if held is None else held
        plans = plans or self._plans(caches, held, spoken, size, block or 0)
        embedded = self.embed(x)
        embedded = embedded * valid_mask(lengths, x.shape[1])[:, :, None].to(embedded.dtype)
        embedded = functional.pad(embedded, (0, 0, 0, self.config.pre_lookahead_len))
        hidden, lookahead_tail = self.pre_lookahead_layer(embedded, size, committed, caches["lookahead_tail"])
        hidden, token_kv = self._stack(self.encoders, hidden, plans.tokens, caches["token_kv"])
        hidden, upsample_tail = self.up_layer(hidden, committed, caches["upsample_tail"])
        hidden, frame_kv = self._stack(self.up_encoders, self.up_embed(hidden), plans.frames, caches["frame_kv"])
        tails = {"lookahead_tail": lookahead_tail, "upsample_tail": upsample_tail}
        added = {"token_kv": token_kv, "frame_kv": frame_kv, **tails}
        return self.after_norm(hidden), spoken * self.config.up_stride, added

    def state_specs(self) -> tuple[CacheSpec, ...]:
        """Describe what a stream keeps: keys and values of every layer, and the left contexts of the convolutions."""
        c = self.config
        kv = (c.attention_heads, 0, 2 * c.head_dim)
        return (
            CacheSpec("token_kv", (c.num_blocks, *kv), 1, 2, 1),
            CacheSpec("frame_kv", (c.num_up_blocks, *kv), 1, 2, c.up_stride),
            CacheSpec("lookahead_tail", (c.output_size, 2), 0),
            CacheSpec("upsample_tail", (c.output_size, self.UPSAMPLE_CONTEXT), 0),
        )

    def _plans(self, caches: Mapping[str, Tensor], held: Tensor, spoken: Tensor, size: int, block: int) -> EncoderPlans:
        token_size, frame_size, stride = caches["token_kv"].shape[3], caches["frame_kv"].shape[3], self.config.up_stride
        return EncoderPlans(
            chunk_plan(held, token_size, spoken, size, block),
            chunk_plan(held * stride, frame_size, spoken * stride, size * stride, block * stride),
        )

    def _stack(self, blocks: nn.ModuleList, x: Tensor, plan: AttentionPlan, kv: Tensor) -> tuple[Tensor, Tensor]:
        sinusoids = relative_sinusoids(plan, self.config.output_size, x.dtype)
        own = []
        for block, layer_kv in zip(blocks, kv, strict=True):
            x, own_kv = block(x, plan, sinusoids, layer_kv)
            own.append(own_kv)
        return x, torch.stack(own)
