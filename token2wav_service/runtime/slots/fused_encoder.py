"""The conformer encoder on fused kernels, with histories read where they are.

What `models/encoder.py` computes for streams in slots; the residual stream, norms and softmax are float32. Scores of
relative positions are one product with a table of encodings, made once for each chunk size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.causal import PreLookahead, sinusoids
from token2wav_service.models.flow.encoder import LAYER_NORM_EPS, ConformerEncoder
from token2wav_service.runtime.kernels import attention_ops, ops
from token2wav_service.runtime.kernels import vocoder_ops as convolutions
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces, Positions
from token2wav_service.runtime.kernels.vocoder_kernels import LEAKY
from token2wav_service.runtime.slots.vocoder_network import pack_convolution

OUTER_EPS = 1e-5
"""Epsilon of the norms around the blocks."""
LOOKAHEAD_SLOPE = 0.01
ALIGNMENT = 8
"""Multiple that distances are padded to, so that products read whole vectors."""


@dataclass(frozen=True)
class BlockMasking:
    """Of a chunk whose queries see no further than their own block."""

    tokens: int
    """Number of tokens of a block."""
    committed: Tensor
    """[B] tokens of the chunk whose blocks are complete after it; no others are kept."""


@dataclass(frozen=True)
class EncoderTails:
    """Columns that the two causal convolutions continue from."""

    lookahead: Tensor
    """[slots, C, 2]."""
    upsample: Tensor
    """[slots, C, 4]."""


class FusedEncoder:
    """Encodes chunks of many streams; holds packed weights, no state."""

    def __init__(self, encoder: ConformerEncoder, max_prompt_frames: int, kept_sizes: Sequence[int]) -> None:
        """Pack the weights.

        Args:
            encoder: in eval mode, on its device, in the dtype to compute in.
            max_prompt_frames: longest prompt.
            kept_sizes: spoken tokens of chunks whose tables are kept once made.
        """
        c = encoder.config
        self.config = c
        self.dtype = encoder.after_norm.weight.dtype
        self.embed, self.up_embed = _Embed(encoder.embed), _Embed(encoder.up_embed)
        self.lookahead = FusedLookahead(encoder.pre_lookahead_layer, self.dtype)
        self.up_conv = pack_convolution(encoder.up_layer.conv, self.dtype)
        self.factor = encoder.up_layer.factor
        prompts = max_prompt_frames // c.up_stride
        self.blocks = _Stack(encoder.encoders, prompts, kept_sizes)
        self.up_blocks = _Stack(encoder.up_encoders, max_prompt_frames, [c.up_stride * size for size in kept_sizes])
        self.after_scale, self.after_shift = _modulation(encoder.after_norm)

    def encode(
        self,
        embedded: Tensor,
        num_tokens: Tensor,
        spoken: Tensor,
        places: tuple[KeyPlaces, KeyPlaces],
        windows: tuple[Tensor, Tensor],
        tails: EncoderTails,
        masking: BlockMasking | None = None,
    ) -> Tensor:
        """Encode one chunk of every row, and keep what the next needs.

        Args:
            embedded: [B, T + 3, C] tokens' embeddings.
            num_tokens: [B] valid tokens, look-ahead included.
            spoken: [B] without it.
            places: of the blocks' keys (token rate) and of the up-blocks' (mel rate).
            windows: their rings, [slots, L, h, W, 2d].
            tails: changed in place.
            masking: None shows the whole chunk to every query, and keeps it all.

        Returns:
            [B, 2T, C] hidden frames.
        """
        slots = places[0].slots
        size = embedded.shape[1] - self.config.pre_lookahead_len
        kept, block = (masking.committed, masking.tokens) if masking else (spoken, 0)
        x = self.embed(embedded, num_tokens, self.dtype)
        hidden = self.lookahead(x, size, kept, tails.lookahead, slots).float()
        hidden, branch = self.blocks.run(hidden, places[0], windows[0], kept, block)
        hidden = hidden.add_(branch).to(self.dtype)
        columns = attention_ops.lead_columns(hidden, tails.upsample, slots, self.factor)
        attention_ops.keep_columns(columns, tails.upsample, slots, kept, self.factor)
        frames = size * self.factor
        ends = convolutions.Ends(spoken, 0, frames)
        upsampled, _ = convolutions.convolve(columns, self.up_conv, ends, frames)
        assert upsampled is not None
        hidden = self.up_embed(upsampled, None, torch.float32)
        hidden, branch = self.up_blocks.run(hidden, places[1], windows[1], kept * self.factor, block * self.factor)
        normed = torch.empty_like(branch)
        ops.residual_norm(
            hidden.flatten(0, 1), branch.flatten(0, 1), None, self.after_scale, self.after_shift,
            normed.flatten(0, 1), None, frames, OUTER_EPS,
        )  # fmt: skip
        return normed


class FusedLookahead:
    """The layer that mixes each token with the next ones; holds packed weights, no state."""

    def __init__(self, layer: PreLookahead, dtype: torch.dtype) -> None:
        self.conv1, self.conv2 = (pack_convolution(conv, dtype) for conv in (layer.conv1, layer.conv2))

    def __call__(self, x: Tensor, size: int, kept: Tensor, tails: Tensor, slots: Tensor) -> Tensor:
        """Mix in the look-ahead, and keep what the next chunk needs.

        Args:
            x: [B, size + look-ahead, C]; behind the last token the look-ahead reads silence.
            size: columns to make.
            kept: [B] columns per row after which the tail is taken.
            tails: [slots, hidden, 2], changed in place.
            slots: [B].

        Returns:
            [B, size, C].
        """
        ends = convolutions.Ends(kept, 0, size)
        leaky = convolutions.Activation(LEAKY.value, slope=LOOKAHEAD_SLOPE)
        _, y = convolutions.convolve(x, self.conv1, ends, size, activation=leaky, keeps_plain=False)
        assert y is not None
        columns = attention_ops.lead_columns(y, tails, slots)
        attention_ops.keep_columns(columns, tails, slots, kept)
        mixed, _ = convolutions.convolve(columns, self.conv2, ends, size, residual=x[:, :size].contiguous())
        assert mixed is not None
        return mixed


class _Embed:
    """Linear, norm, then times sqrt(width)."""

    def __init__(self, embed: Any) -> None:
        self.linear, norm = embed.out[0], embed.out[1]
        self.weight, self.bias = norm.weight.detach().float(), norm.bias.detach().float()
        self.scale = embed.scale

    def __call__(self, x: Tensor, lengths: Tensor | None, dtype: torch.dtype) -> Tensor:
        projected = functional.linear(x, self.linear.weight, self.linear.bias)
        return attention_ops.embed_norm(projected, self.weight, self.bias, self.scale, lengths, dtype)


class _Stack:
    """Blocks of one rate."""

    def __init__(self, blocks: Any, max_prompt: int, kept_sizes: Sequence[int]) -> None:
        self.blocks = [_PackedBlock(block) for block in blocks]
        self.max_prompt, self.kept_sizes = max_prompt, tuple(kept_sizes)
        self._tables: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def run(
        self, hidden: Tensor, places: KeyPlaces, window: Tensor, kept: Tensor, block_size: int
    ) -> tuple[Tensor, Tensor]:
        """Run all blocks on [B, T, C] float32, changed in place; returns it and what is still to be added.

        `kept` [B] columns join the rings; `block_size` as `attend` takes it.
        """
        streams, frames, width = hidden.shape
        rows = hidden.flatten(0, 1)
        layers, heads = window.shape[1:3]
        dim = window.shape[4] // 2
        tables = self._tables_of(frames, window.shape[3])
        like = window[0, 0]
        normed = like.new_empty(rows.shape)
        attended = like.new_empty(rows.shape)
        qkv = like.new_empty(layers, rows.shape[0], 3 * width)
        branch: Tensor | None = None
        for layer, (block, (encodings, bias)) in enumerate(zip(self.blocks, tables, strict=True)):
            own = qkv[layer]
            ops.residual_norm(rows, branch, None, *block.norm_mha, normed, None, frames, LAYER_NORM_EPS)
            torch.addmm(block.qkv_bias, normed, block.qkv_weight, out=own)
            queries = own[:, :width].view(-1, heads, dim).transpose(0, 1)
            positions = Positions(block.query_bias, torch.bmm(queries, encodings), bias)
            attention_ops.attend(
                own, heads, window[:, layer], layer * heads, places, frames, attended, positions=positions,
                block=block_size,
            )  # fmt: skip
            branch = functional.linear(attended, block.out_weight, block.out_bias)
            ops.residual_norm(rows, branch, None, *block.norm_ff, normed, None, frames, LAYER_NORM_EPS)
            widened = functional.silu(functional.linear(normed, block.w1, block.b1), inplace=True)
            branch = functional.linear(widened, block.w2, block.b2)
        assert branch is not None
        attention_ops.commit_rows(qkv, window, places.slots, places.generated, kept, frames)
        return hidden, branch.view(streams, frames, width)

    def _tables_of(self, frames: int, window: int) -> list[tuple[Tensor, Tensor]]:
        """Return each block's encodings of the distances that a chunk of so many columns can have."""
        key = (frames, window)
        if key in self._tables:
            return self._tables[key]
        count = self.max_prompt + window + 2 * frames
        count = math.ceil(count / ALIGNMENT) * ALIGNMENT
        tables = [block.encode_distances(1 - frames, count) for block in self.blocks]
        if frames in self.kept_sizes:
            self._tables[key] = tables
        return tables


class _PackedBlock:
    """One block's weights."""

    def __init__(self, block: Any) -> None:
        attn, feed = block.self_attn, block.feed_forward
        self.heads, self.dim = attn.heads, attn.head_dim
        weights = [attn.linear_q.weight, attn.linear_k.weight, attn.linear_v.weight]
        self.qkv_weight = torch.cat(weights).detach().t().contiguous()
        zero = torch.zeros_like(attn.linear_q.bias)
        key_bias = zero if attn.linear_k.bias is None else attn.linear_k.bias
        self.qkv_bias = torch.cat([attn.linear_q.bias, key_bias, attn.linear_v.bias]).detach()
        self.query_bias = attn.pos_bias_u.detach().float().contiguous()
        self.out_weight, self.out_bias = attn.linear_out.weight, attn.linear_out.bias
        self.w1, self.b1 = feed.w_1.weight, feed.w_1.bias
        self.w2, self.b2 = feed.w_2.weight, feed.w_2.bias
        self.norm_mha, self.norm_ff = _modulation(block.norm_mha), _modulation(block.norm_ff)
        self._position_weight = attn.linear_pos.weight.detach()
        self._position_bias = attn.pos_bias_v.detach().float()

    def encode_distances(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return [h, d, R] encodings of the distances first, first + 1, ..., and [h, R] what the bias makes of them.

        Source: specification section 4, in closed form; angles in float64.
        """
        weight = self._position_weight
        distance = torch.arange(first, first + count, device=weight.device, dtype=torch.float64)
        encoded = functional.linear(sinusoids(distance, weight.shape[1]).float(), weight.float())
        encoded = encoded.view(count, self.heads, self.dim)
        bias = torch.einsum("rhd,hd->hr", encoded, self._position_bias)
        return encoded.permute(1, 2, 0).to(weight.dtype).contiguous(), bias.contiguous()


def _modulation(norm: Any) -> tuple[Tensor, Tensor]:
    """Return a norm's weight and bias as `residual_norm` takes them: scale less one, and shift."""
    return norm.weight.detach().float() - 1, norm.bias.detach().float()
