"""The flow: speech tokens and a voice to mel frames. Encoder, projection, solver; state passed in and out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import valid_mask
from token2wav_service.models.config import FlowConfig
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, SolverHistory
from token2wav_service.models.flow.dit import DiT
from token2wav_service.models.flow.encoder import ConformerEncoder, EncoderHistory, EncoderPlans, EncoderUpdate
from token2wav_service.models.streaming import CacheSpec


@dataclass(frozen=True)
class FlowHistory:
    """What earlier chunks of each row left, padded to one batch."""

    encoder: EncoderHistory
    solver: SolverHistory
    solver_mask: Tensor
    """[B, S] bool, true where the solver's history holds a frame."""


@dataclass(frozen=True)
class FlowUpdate:
    """What this chunk adds to each row's history (own chunk only, padded on the right)."""

    encoder: EncoderUpdate
    solver: SolverHistory
    frame_lengths: Tensor
    """[B] valid mel frames of the chunk."""


@dataclass(frozen=True)
class FlowPlans:
    """Attention to use instead of [history | own chunk]; for block-masked whole utterances."""

    encoder: EncoderPlans
    solver_mask: Tensor
    """[B, 1, T, S + T] bool."""


class Flow(nn.Module):
    """The upstream CausalMaskedDiffWithXvec, with its parameter names.

    Source: specification sections 3 to 7; differs in that a batch may mix rows of any chunk and history length.
    """

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_dim, config.output_size)
        self.encoder = ConformerEncoder(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.output_size, config.output_size)
        self.decoder = ConditionalFlowMatching(DiT(config.estimator), config.inference_cfg_rate)
        self.output_size, self.vocab_size = config.output_size, config.vocab_size
        self.stride, self.lookahead = config.encoder.up_stride, config.encoder.pre_lookahead_len

    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """Describe a stream's state under `steps` solver steps."""
        e = self.config.estimator
        return (
            *self.encoder.state_specs(),
            CacheSpec("solver_kv", (steps, e.depth, 2, e.num_heads, 0, 2 * e.head_dim), 3, 4, self.stride),
            CacheSpec("solver_tail", (steps, e.depth, 2, 2 * e.hidden_size, 2), 3),
        )

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
        history: FlowHistory | None = None,
        plans: FlowPlans | None = None,
        upstream_padding_leak: bool = False,
    ) -> tuple[Tensor, FlowUpdate]:
        """Turn one chunk of every row, or whole utterances, into mel.

        Args:
            tokens: [B, N] int64, padded on the right with any valid id; unless a row is last its final 3 valid
                tokens are look-ahead. Negative ids count as 0.
            token_lengths: [B] valid tokens per row.
            is_last: [B] bool.
            speaker: [B, 192] raw speaker embedding.
            noise: [B, 80, at least 2T] standard normal, T the longest row without look-ahead.
            steps: Euler steps.
            cond: [B, 80, 2T] conditioning mel; None is zero.
            history: what earlier chunks left.
            plans: attention to use instead of [history | own chunk].
            upstream_padding_leak: see `ConformerEncoder.forward`.

        Returns:
            Mel [B, 80, 2T] in the model's dtype, and what the chunk adds to the history.
        """
        mu, speaker_vector, frame_lengths, encoder_update = self.condition(
            tokens.clamp(min=0),
            token_lengths,
            is_last,
            speaker,
            history.encoder if history else None,
            plans=plans.encoder if plans else None,
            upstream_padding_leak=upstream_padding_leak,
        )
        frames = mu.shape[2]
        mel, solver_update = self.decoder(
            noise[:, :, :frames].to(mu.dtype),
            mu,
            speaker_vector,
            torch.zeros_like(mu) if cond is None else cond.to(mu.dtype),
            plans.solver_mask if plans else _solver_mask(history, frame_lengths, frames),
            frame_lengths,
            steps,
            history.solver if history else None,
        )
        return mel, FlowUpdate(encoder_update, solver_update, frame_lengths)

    def condition(
        self,
        tokens: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        speaker: Tensor,
        history: EncoderHistory | None = None,
        *,
        plans: EncoderPlans | None = None,
        size: int | None = None,
        upstream_padding_leak: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, EncoderUpdate]:
        """Turn tokens and a voice into the solver's conditions.

        Args:
            tokens, token_lengths, is_last, speaker: as in `forward`, but without negative ids.
            history, plans, size, upstream_padding_leak: as in `ConformerEncoder.forward`.

        Returns:
            mu [B, 80, 2T], the projected speaker [B, 80], [B] valid frames, and what the chunk adds to the history.
        """
        embedded = self.input_embedding(tokens)
        embedded = embedded * valid_mask(token_lengths, tokens.shape[1])[:, :, None].to(embedded.dtype)
        hidden, frame_lengths, update = self.encoder(
            embedded,
            token_lengths,
            is_last,
            history,
            plans=plans,
            size=size,
            upstream_padding_leak=upstream_padding_leak,
        )
        mu = self.encoder_proj(hidden).transpose(1, 2)
        vector = self.spk_embed_affine_layer(functional.normalize(speaker.to(mu.dtype), dim=1))
        return mu, vector, frame_lengths, update

    @property
    def device(self) -> torch.device:
        """Where the inputs must be."""
        return self.input_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the caches."""
        return self.spk_embed_affine_layer.weight.dtype


def _solver_mask(history: FlowHistory | None, frame_lengths: Tensor, frames: int) -> Tensor:
    own = valid_mask(frame_lengths, frames)
    mask = own if history is None else torch.cat([history.solver_mask, own], 1)
    return mask[:, None, None, :]
