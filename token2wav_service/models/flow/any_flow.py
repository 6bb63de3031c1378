"""What the flows of all families share: speech tokens and a voice to mel, whole or in chunks.

A chunk's state is passed in and out as named tensors that the flow describes. Under a block mask (CosyVoice2's,
CosyVoice3's) a frame sees every earlier block and its own, so that what complete blocks leave behind never changes: a
chunk is computed from the last complete block on.

Source: specification sections 3 to 7, specification of the flows, sections 3 to 7; differs in that a batch may mix rows
of any chunk and history length.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import CacheSpec, chunk_plan, empty_caches, valid_mask
from token2wav_service.models.config import AnyFlowConfig
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, SolverHistory

Caches = Mapping[str, Tensor]


@dataclass(frozen=True)
class Past:
    """What earlier chunks of each row left, padded to one batch (aligned to the right on time)."""

    caches: Caches
    """Caches as `AnyFlow.state_specs` describes them, with the batch's axis."""
    tokens: Tensor
    """[B] tokens per row that the encoder's growing caches hold."""
    frames: Tensor
    """[B] mel frames per row that the solver's hold."""
    first_tokens: Tensor
    """[B] absolute position, prompt included, of each row's first token in the chunk."""


class AnyFlow(nn.Module, ABC):
    """Tokens to mel, with upstream's parameter names."""

    config: AnyFlowConfig
    decoder: ConditionalFlowMatching[nn.Module]
    has_positions = False
    """Whether the estimator encodes where a chunk stands."""
    noise_frames = 15_000
    """Columns (300 s with the prompt) of the original's noise buffer."""

    def __init__(self, config: AnyFlowConfig, stride: int, lookahead: int, block_tokens: int) -> None:
        super().__init__()
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_dim, config.output_size)
        self.output_size, self.vocab_size = config.output_size, config.vocab_size
        self.stride = stride
        """Mel frames for every token."""
        self.lookahead = lookahead
        """Tokens that a chunk needs beyond those it speaks."""
        self.block_tokens = block_tokens
        """Tokens (25 Hz) in a block of the mask; 0 without a block mask."""

    def steps(self, asked: int | None) -> int:
        """Return the solver's steps: those asked for, else the checkpoint's."""
        return asked or self.config.ode_steps

    @abstractmethod
    def state_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """Describe a stream's state under `steps` solver steps."""

    def solver_specs(self, steps: int) -> tuple[CacheSpec, ...]:
        """Describe the part of the estimator: keys and values of its layers, left contexts of its convolutions."""
        past = self.config.estimator.past
        groups, channels, columns = past.tail
        return (
            CacheSpec("solver_kv", (steps, past.layers, 2, past.heads, 0, past.pair), 3, 4, self.stride),
            CacheSpec("solver_tail", (steps, groups, 2, channels, columns), 3),
        )

    @abstractmethod
    def encode(
        self, inputs: Tensor, token_lengths: Tensor, is_last: Tensor, committed: Tensor, past: Past, *, is_masked: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Turn embedded tokens into the solver's conditions.

        Args:
            inputs: [B, N, C] token embeddings, 0 beyond the rows' ends.
            token_lengths, is_last, committed, past: as in `forward`.
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
        is_masked: bool = True,
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
            past: what came before the chunk left, under a block mask in complete blocks; None where there was nothing.
            committed: [B] tokens per row after which convolution tails are taken; None is all without look-ahead.
            is_masked: whether no frame looks beyond its own block, if the flow has blocks; else all see all others.

        Returns:
            Mel [B, 80, stride T] in the model's dtype (without meaning beyond a row's end), and what the chunk adds
            to each cache: its own columns, padded on the right, and the new tails.
        """
        spoken = torch.where(is_last, token_lengths, token_lengths - self.lookahead)
        committed = spoken if committed is None else committed
        past = past or self.empty_past(tokens.shape[0], steps)
        mu, vector, added = self.condition(
            tokens, token_lengths, is_last, speaker, committed, past, is_masked=is_masked
        )
        mel, update = self.decoder(
            noise[:, :, : mu.shape[2]].to(mu.dtype),
            mu,
            vector,
            torch.zeros_like(mu) if cond is None else cond.to(mu.dtype),
            self._solver_mask(past, spoken, mu.shape[2], is_masked=is_masked),
            committed * self.stride,
            steps,
            SolverHistory(past.caches["solver_kv"], past.caches["solver_tail"]),
            first_frames=past.first_tokens * self.stride if self.has_positions else None,
        )
        return mel, {**added, "solver_kv": update.kv, "solver_tail": update.tail}

    def condition(
        self,
        tokens: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        speaker: Tensor,
        committed: Tensor,
        past: Past,
        *,
        is_masked: bool = True,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Turn tokens and a voice into mu [B, 80, stride T] and the projected speaker [B, 80]; else as `encode`."""
        embedded = self.input_embedding(tokens.clamp(min=0))
        embedded = embedded * valid_mask(token_lengths, tokens.shape[1])[:, :, None].to(embedded.dtype)
        mu, added = self.encode(embedded, token_lengths, is_last, committed, past, is_masked=is_masked)
        return mu, self.spk_embed_affine_layer(functional.normalize(speaker.to(mu.dtype), dim=1)), added

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
        return chunk_plan(past.frames, held, spoken * self.stride, frames, block).mask

    def empty_past(self, rows: int, steps: int) -> Past:
        """Return what rows have that begin, under `steps` solver steps."""
        none = torch.zeros(rows, dtype=torch.long, device=self.device)
        return Past(empty_caches(self.state_specs(steps), none.to(self.dtype)), none, none, none)


def state_bytes(flow: AnyFlow, steps: int, tokens: int, encoder_tokens: int | None = None) -> int:
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
