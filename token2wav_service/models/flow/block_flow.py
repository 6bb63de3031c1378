"""The flows that stream under a block mask: CosyVoice2's and CosyVoice3's. Tokens and a voice to mel.

A frame sees every earlier block and its own, so what complete blocks leave behind never changes. A chunk is computed
from the last complete block on; its state is passed in and out as named tensors that the flow describes.

Source: specification of the flows, sections 3 to 7.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import PreLookahead, chunk_plan, valid_mask
from token2wav_service.models.config import CosyVoice2FlowConfig, CosyVoice3FlowConfig
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, SolverHistory
from token2wav_service.models.flow.encoder import ConformerEncoder, EncoderHistory, EncoderPlans
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.rotary_dit import LEFT_CONTEXT as ROTARY_CONTEXT
from token2wav_service.models.flow.rotary_dit import RotaryDiT
from token2wav_service.models.flow.unet import LEFT_CONTEXT as UNET_CONTEXT
from token2wav_service.models.flow.unet import UNet
from token2wav_service.models.streaming import CacheSpec

Caches = Mapping[str, Tensor]


@dataclass(frozen=True)
class Past:
    """What earlier chunks of each row left, padded to one batch (aligned to the right on time)."""

    caches: Caches
    """Caches as `BlockFlow.state_specs` describes them, with the batch's axis."""
    tokens: Tensor
    """[B] tokens per row that the growing caches hold."""
    first_tokens: Tensor
    """[B] absolute position, prompt included, of each row's first token in the chunk."""


@dataclass(frozen=True)
class BlockMask:
    """Which parts look no further than the end of a query's own block; the other part sees the whole chunk."""

    encoder: bool = True
    estimator: bool = True


STREAMING = BlockMask()
"""Mask that the models were trained to stream with."""
UNMASKED = BlockMask(encoder=False, estimator=False)
"""Mask for whole utterances, every frame seeing all others."""
UNMASKED_ESTIMATOR = BlockMask(encoder=True, estimator=False)
"""Mask that the original's exported estimators compute."""


class BlockFlow(nn.Module, ABC):
    """Everything that the two flows share, with upstream's parameter names."""

    config: CosyVoice2FlowConfig | CosyVoice3FlowConfig
    decoder: ConditionalFlowMatching[nn.Module]

    def __init__(self, config: CosyVoice2FlowConfig | CosyVoice3FlowConfig) -> None:
        super().__init__()
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_dim, config.output_size)
        self.output_size = config.output_size
        self.vocab_size = config.vocab_size
        self.block_tokens = config.block_tokens

    @property
    @abstractmethod
    def lookahead(self) -> int:
        """Tokens that a chunk needs beyond those it speaks."""

    @property
    @abstractmethod
    def stride(self) -> int:
        """Mel frames for every token."""

    @abstractmethod
    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """Describe a stream's state under `steps` solver steps."""

    @abstractmethod
    def encode(
        self,
        embedded: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        committed: Tensor,
        past: Past,
        size: int,
        *,
        is_masked: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Turn embedded tokens into the solver's conditions.

        Args:
            embedded: [B, N, C] token embeddings, 0 beyond the rows' ends.
            token_lengths, is_last, committed, past: as in `forward`.
            size: T, tokens to speak in the longest row.
            is_masked: whether queries look no further than their own block.

        Returns:
            mu [B, 80, stride T], and what the chunk adds to the caches of this part.
        """

    def forward(
        self,
        tokens: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        speaker: Tensor,
        noise: Tensor,
        steps: int,
        *,
        cond: Tensor | None = None,
        past: Past | None = None,
        committed: Tensor | None = None,
        mask: BlockMask = STREAMING,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Turn one chunk of every row, or whole utterances, into mel.

        Args:
            tokens: [B, N] int64, padded on the right with any valid id; unless a row is last its final 3 valid
                tokens are look-ahead. The first stands at the start of a block. Negative ids count as 0.
            token_lengths: [B] valid tokens per row.
            is_last: [B] bool; a last row's look-ahead is silence.
            speaker: [B, 192] raw speaker embedding.
            noise: [B, 80, at least stride T] standard normal, T the longest row without look-ahead.
            steps: Euler steps; must equal the past's.
            cond: [B, 80, stride T] conditioning mel; None is zero.
            past: what complete blocks before the chunk left; None where there are none.
            committed: [B] tokens per row after which convolution tails are taken; None is all without look-ahead.
            mask: which parts are block-masked.

        Returns:
            Mel [B, 80, stride T] in the model's dtype (without meaning beyond a row's end), and what the chunk adds
            to each cache: its own columns, padded on the right, and the new tails.
        """
        spoken = torch.where(is_last, token_lengths, token_lengths - self.lookahead)
        size = tokens.shape[1] if bool(is_last.any()) else tokens.shape[1] - self.lookahead
        committed = spoken if committed is None else committed
        past = past or self.empty_past(tokens.shape[0], steps)
        embedded = self.input_embedding(tokens.clamp(min=0))
        embedded = embedded * valid_mask(token_lengths, tokens.shape[1])[:, :, None].to(embedded.dtype)
        mu, added = self.encode(embedded, token_lengths, is_last, committed, past, size, is_masked=mask.encoder)
        vector = self.spk_embed_affine_layer(functional.normalize(speaker.to(mu.dtype), dim=1))
        history = SolverHistory(past.caches["solver_kv"], past.caches["solver_tail"])
        mel, update = self.decoder(
            noise[:, :, : mu.shape[2]].to(mu.dtype),
            mu,
            vector,
            torch.zeros_like(mu) if cond is None else cond.to(mu.dtype),
            self._solver_mask(past, spoken, mu.shape[2], is_masked=mask.estimator),
            committed * self.stride,
            steps,
            history,
            first_frames=past.first_tokens * self.stride,
        )
        return mel, {**added, "solver_kv": update.kv, "solver_tail": update.tail}

    @property
    def device(self) -> torch.device:
        """Where the inputs must be."""
        return self.input_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the caches."""
        return self.spk_embed_affine_layer.weight.dtype

    def _solver_mask(self, past: Past, spoken: Tensor, frames: int, *, is_masked: bool) -> Tensor:
        held = past.caches["solver_kv"].shape[5]
        block = self.block_tokens * self.stride if is_masked else None
        return chunk_plan(past.tokens * self.stride, held, spoken * self.stride, frames, block).mask

    def empty_past(self, rows: int, steps: int) -> Past:
        """Return what rows have that begin, under `steps` solver steps."""
        shapes = {
            spec.name: (*spec.shape[: spec.batch_axis], rows, *spec.shape[spec.batch_axis :])
            for spec in self.state_specs(steps)
        }
        caches = {name: torch.zeros(shape, dtype=self.dtype, device=self.device) for name, shape in shapes.items()}
        none = torch.zeros(rows, dtype=torch.long, device=self.device)
        return Past(caches, none, none)


def state_bytes(flow: Flow | BlockFlow, steps: int, tokens: int, encoder_tokens: int | None = None) -> int:
    """Return the memory of a state under `steps` solver steps whose growing caches hold `tokens` tokens.

    `encoder_tokens` is what the conformer's hold, where it is another number.
    """
    encoder = {"token_kv", "frame_kv"}
    count = 0
    for spec in flow.state_specs(steps):
        shape, held = list(spec.shape), tokens
        if encoder_tokens is not None and spec.name in encoder:
            held = encoder_tokens
        if spec.time_axis is not None:
            shape[spec.time_axis] = held * spec.columns_per_token
        count += math.prod(shape)
    return count * flow.dtype.itemsize


class CosyVoice2Flow(BlockFlow):
    """The upstream CausalMaskedDiffWithXvec: conformer encoder and U-Net estimator."""

    config: CosyVoice2FlowConfig

    def __init__(self, config: CosyVoice2FlowConfig) -> None:
        super().__init__(config)
        self.config = config
        self.encoder = ConformerEncoder(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.output_size, config.output_size)
        self.decoder = ConditionalFlowMatching(UNet(config.estimator), config.inference_cfg_rate)

    @property
    def lookahead(self) -> int:
        return self.config.encoder.pre_lookahead_len

    @property
    def stride(self) -> int:
        return self.config.encoder.up_stride

    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """Keys and values of every attention layer, and the left contexts of every convolution."""
        e = self.config.estimator
        return (
            *self.encoder.state_specs(),
            CacheSpec("solver_kv", (steps, e.num_layers, 2, e.num_heads, 0, 2 * e.head_dim), 3, 4, self.stride),
            CacheSpec("solver_tail", (steps, 1, 2, e.tail_channels, UNET_CONTEXT), 3),
        )

    def encode(
        self,
        embedded: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        committed: Tensor,
        past: Past,
        size: int,
        *,
        is_masked: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `BlockFlow.encode`."""
        caches, stride = past.caches, self.stride
        history = EncoderHistory(
            caches["token_kv"],
            caches["frame_kv"],
            past.tokens,
            past.tokens * stride,
            caches["lookahead_tail"],
            caches["upsample_tail"],
        )
        spoken = torch.where(is_last, token_lengths, token_lengths - self.lookahead)
        block = self.block_tokens if is_masked else None
        plans = EncoderPlans(
            chunk_plan(past.tokens, history.token_kv.shape[3], spoken, size, block),
            chunk_plan(
                past.tokens * stride,
                history.frame_kv.shape[3],
                spoken * stride,
                size * stride,
                None if block is None else block * stride,
            ),
        )
        hidden, _, update = self.encoder(
            embedded, token_lengths, is_last, history, plans=plans, size=size, committed=committed
        )
        added = {
            "token_kv": update.token_kv,
            "frame_kv": update.frame_kv,
            "lookahead_tail": update.lookahead_tail,
            "upsample_tail": update.upsample_tail,
        }
        return self.encoder_proj(hidden).transpose(1, 2), added


class CosyVoice3Flow(BlockFlow):
    """The upstream CausalMaskedDiffWithDiT: a look-ahead layer on the tokens' embeddings and a rotary DiT."""

    config: CosyVoice3FlowConfig

    def __init__(self, config: CosyVoice3FlowConfig) -> None:
        super().__init__(config)
        self.config = config
        self.pre_lookahead_layer = PreLookahead(config.input_size, config.lookahead_channels, config.pre_lookahead_len)
        self.decoder = ConditionalFlowMatching(RotaryDiT(config.estimator), config.inference_cfg_rate)

    @property
    def lookahead(self) -> int:
        return self.config.pre_lookahead_len

    @property
    def stride(self) -> int:
        return self.config.token_mel_ratio

    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """Rotated keys and values of every attention layer, and the left contexts of every convolution."""
        e = self.config.estimator
        return (
            CacheSpec("lookahead_tail", (self.config.lookahead_channels, 2), 0),
            CacheSpec("solver_kv", (steps, e.depth, 2, e.heads, 0, 2 * e.head_dim), 3, 4, self.stride),
            CacheSpec("solver_tail", (steps, 1, 2, 2 * e.dim, ROTARY_CONTEXT), 3),
        )

    def encode(
        self,
        embedded: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        committed: Tensor,
        past: Past,
        size: int,
        *,
        is_masked: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `BlockFlow.encode`; there is no attention here to be masked."""
        padded = functional.pad(embedded, (0, 0, 0, self.lookahead))
        mixed, tail = self.pre_lookahead_layer(padded, size, committed, past.caches["lookahead_tail"])
        mu = mixed.repeat_interleave(self.stride, dim=1).transpose(1, 2)
        return mu, {"lookahead_tail": tail}
