"""Mel to audio for streams whose state lives in slots; fit to be captured as a CUDA graph.

What `models/vocoder_stream.py` computes, with rows at the beginning, middle and end of their streams in one batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from token2wav_service.config import SourcePhase, SynthesisPolicy
from token2wav_service.models.causal import valid_mask
from token2wav_service.models.crossfade import crossfade_window
from token2wav_service.models.hift import HiFT, ResBlock, Snake
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.models.vocoder_stream import OVERLAP_FRAMES
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.slots.pool import StreamPool
from token2wav_service.runtime.slots.slot_flow import SlotBatch


class SlotVocoder:
    """Vocodes on a pool; holds the model, no stream."""

    def __init__(self, hift: HiFT, policy: SynthesisPolicy, pool: StreamPool) -> None:
        self.hift, self.policy, self.pool = fuse_snakes(hift), policy, pool
        self.frame_samples = hift.config.frame_samples
        self.overlap = OVERLAP_FRAMES * self.frame_samples
        window = crossfade_window(policy.crossfade, self.overlap).float().to(pool.mel_tail.device)
        self.fade_in, self.fade_out = window.chunk(2)

    def run(self, mel: Tensor, frames: Tensor, batch: SlotBatch) -> Tensor:
        """Vocode [tail | new frames] of every row and keep what the next chunk needs.

        Rows that are not ready (no speech yet, fewer frames than the overlap, not last) only keep their frames.

        Args:
            mel: [B, F, 80] float32 new frames, padded on the right.
            frames: [B] valid new frames.

        Returns:
            Samples [B, 480 (F + 8)] float32, joined to the previous chunk; a row that is not last holds back its
            valid samples' last 3840.
        """
        joined, lengths = self._join_tail(mel, frames, batch)
        has_speech = batch.has_speech.bool()
        source, edges = self._source(joined, lengths, batch, has_speech)
        speech = self.hift(joined, source, lengths)[:, : source.shape[2]]
        old = self.pool.speech_tail.index_select(0, batch.slots)
        faded = speech[:, : self.overlap] * self.fade_in + old * self.fade_out
        speech = torch.cat(
            [torch.where(has_speech[:, None], faded, speech[:, : self.overlap]), speech[:, self.overlap :]], 1
        )
        self._keep(joined, source[:, 0], speech, edges, lengths, batch)
        return speech

    def _join_tail(self, mel: Tensor, frames: Tensor, batch: SlotBatch) -> tuple[Tensor, Tensor]:
        """[B, 80, F + 8] the tail and the new frames side by side, zeros behind; and [B] their number."""
        tail = self.pool.mel_tail.index_select(0, batch.slots)
        both = torch.cat([tail, mel.transpose(1, 2)], 2)
        lengths = batch.mel_tails + frames
        column = torch.arange(both.shape[2], device=mel.device)[None]
        in_tail = column < batch.mel_tails[:, None]
        index = torch.where(in_tail, column, column + OVERLAP_FRAMES - batch.mel_tails[:, None])
        index = index.clamp(max=both.shape[2] - 1)[:, None].expand(-1, both.shape[1], -1)
        return both.gather(2, index) * valid_mask(lengths, both.shape[2])[:, None], lengths

    def _source(self, mel: Tensor, lengths: Tensor, batch: SlotBatch, has_speech: Tensor) -> tuple[Tensor, Tensor]:
        """Source [B, 1, N] with the cached beginning, and the phase [B, H] at each row's right edge."""
        module = self.hift.m_source
        f0 = self.hift.f0_predictor(mel, lengths)
        phase, edges = module.phase(f0, self.policy.source_phase, lengths)
        offset = torch.zeros_like(edges[:, :, 0])
        if self.policy.source_phase is SourcePhase.CONTINUOUS:
            before = _column(edges, (batch.mel_tails - 1).clamp(min=0))
            carried = (self.pool.phase.index_select(0, batch.slots) - before) % (2 * math.pi)
            offset = torch.where(has_speech[:, None], carried, offset)
        width = self.frame_samples * module.harmonics
        start = batch.generated - batch.mel_tails
        noise = ops.counter_noise(batch.seeds, start, mel.shape[2], width, int(NoiseDomain.SOURCE))
        source = module(f0, noise.view(mel.shape[0], -1, module.harmonics), phase + offset[:, :, None])
        cached = self.pool.source_tail.index_select(0, batch.slots)[:, None]
        beginning = torch.where(has_speech[:, None, None], cached, source[:, :, : self.overlap])
        source = torch.cat([beginning, source[:, :, self.overlap :]], 2)
        edge = (_column(edges, (lengths - 1).clamp(min=0)) + offset) % (2 * math.pi)
        return source, edge

    def _keep(
        self, mel: Tensor, source: Tensor, speech: Tensor, edge: Tensor, lengths: Tensor, batch: SlotBatch
    ) -> None:
        pool, slots = self.pool, batch.slots
        first = (lengths - OVERLAP_FRAMES).clamp(min=0)
        pool.mel_tail.index_copy_(0, slots, _slice(mel, first, OVERLAP_FRAMES))
        at = first * self.frame_samples
        pool.source_tail.index_copy_(0, slots, _slice(source[:, None], at, self.overlap)[:, 0])
        pool.speech_tail.index_copy_(0, slots, _slice(speech[:, None], at, self.overlap)[:, 0])
        pool.phase.index_copy_(0, slots, edge)


class _FusedSnake(nn.Module):
    """`Snake` in one kernel."""

    def __init__(self, alpha: Tensor) -> None:
        super().__init__()
        self.register_buffer("alpha", alpha)
        self.alpha: Tensor

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return ops.snake(x, self.alpha, mask)


def fuse_snakes(hift: HiFT) -> HiFT:
    """Make every snake activation run in one kernel, in place."""
    for block in hift.modules():
        if isinstance(block, ResBlock):
            for activations in (block.activations1, block.activations2):
                for index, snake in enumerate(activations):
                    if isinstance(snake, Snake):
                        activations[index] = _FusedSnake(snake.alpha.detach())
    return hift


def _slice(values: Tensor, starts: Tensor, size: int) -> Tensor:
    """Return [B, C, size] of [B, C, N], from each row's own start."""
    index = starts[:, None] + torch.arange(size, device=values.device)[None]
    index = index.clamp(max=values.shape[2] - 1)[:, None].expand(-1, values.shape[1], -1)
    return values.gather(2, index)


def _column(values: Tensor, index: Tensor) -> Tensor:
    """Return [B, H] of [B, H, T], each row at its own column."""
    return values.gather(2, index[:, None, None].expand(-1, values.shape[1], 1))[:, :, 0]
