"""CosyVoice3's vocoder for streams whose state lives in slots; fit to be captured as a CUDA graph.

What `models/vocoder/causal_vocoder_stream.py` computes, with rows at the beginning, middle and end of their streams in
one batch. The network is the plain module, in float32 with its pitch in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.models.vocoder.causal_hift import CausalHiFT, CausalState, Spectra
from token2wav_service.runtime.kernels.ops import counter_uniform
from token2wav_service.runtime.slots.slot_vocoder import VocoderBatch, VocoderProgress
from token2wav_service.types import FloatArray


@dataclass(frozen=True)
class CausalVocoderPool:
    """What the causal vocoder keeps of streams; first axis S is the slot."""

    mel_tail: Tensor
    """[S, 4, 80] float32, left aligned: frames that wait for the ones behind them."""
    floats: Tensor
    """[S, num_floats] float32, see `CausalState`."""
    doubles: Tensor
    """[S, num_doubles] float64."""


def allocate_causal_vocoder(slots: int, hift: CausalHiFT) -> CausalVocoderPool:
    """Allocate the causal vocoder's part of a pool, zeroed."""
    state = hift.initial_state(slots)
    mel = state.floats.new_zeros(slots, hift.lookahead, hift.config.in_channels)
    return CausalVocoderPool(mel, state.floats, state.doubles)


class CausalSlotVocoder:
    """Vocodes on a pool; holds the model, no stream."""

    def __init__(
        self, hift: CausalHiFT, policy: SynthesisPolicy, pool: CausalVocoderPool, spectra: Spectra | None = None
    ) -> None:
        """Hold the model.

        Args:
            hift: float32, on its device, weight norms folded.
            policy: source phase.
            pool: states.
            spectra: runs the convolutions; None takes the model's own.
        """
        self.hift, self.policy, self.pool, self.spectra = hift, policy, pool, spectra or hift.spectra
        self.frame_samples = hift.config.frame_samples

    def run(self, mel: Tensor, frames: Tensor, batch: VocoderBatch) -> Tensor:
        """Vocode [tail | new frames] of every row and keep what the next chunk needs.

        Rows whose frames are all look-ahead only keep them.

        Args:
            mel: [B, F, 80] float32 new frames, padded on the right.
            frames: [B] valid new frames.

        Returns:
            Samples [B, 480 (F + 4) + 4]; see `CausalHiFT.decode` for where a row's own begin and end.
        """
        pool, slots, ahead = self.pool, batch.slots, self.hift.lookahead
        joined = self._joined(mel, frames, batch)
        total = batch.mel_tails + frames
        count = total - ahead * (1 - batch.is_last)
        decoded = count.clamp(min=1)
        is_first = batch.has_speech == 0
        # A slot may hold state of its last stream.
        floats, doubles = (
            kept.index_select(0, slots).masked_fill(is_first[:, None], 0.0) for kept in (pool.floats, pool.doubles)
        )
        before = CausalState(floats, doubles, is_first)
        size = joined.shape[1] - ahead
        noise = self._noise(batch, size + 1)
        is_last = batch.is_last > 0
        phase = self.policy.source_phase
        wave, after = self.hift(joined.transpose(1, 2), decoded, is_last, before, noise, phase, self.spectra)
        is_ready = (count > 0)[:, None]
        pool.floats.index_copy_(0, slots, torch.where(is_ready, after.floats, before.floats))
        pool.doubles.index_copy_(0, slots, torch.where(is_ready, after.doubles, before.doubles))
        index = count.clamp(min=0)[:, None] + torch.arange(ahead, device=mel.device)
        pool.mel_tail.index_copy_(0, slots, joined.gather(1, index[:, :, None].expand(-1, -1, joined.shape[2])))
        return torch.as_tensor(wave)

    def deliver(self, progress: VocoderProgress, frames: int, speech: FloatArray, *, is_last: bool) -> FloatArray:
        """Move a stream's progress on by `frames` new ones, and cut its row of samples to what can be given out."""
        total, held = progress.mel_tail + frames, self.hift.held_samples
        count = total - (0 if is_last else self.hift.lookahead)
        if count <= 0:
            progress.mel_tail = total
            return np.zeros(0, np.float32)
        first = 0 if progress.has_speech else held
        progress.mel_tail, progress.has_speech = total - count, True
        return speech[first : count * self.frame_samples + (held if is_last else 0)].copy()

    def _joined(self, mel: Tensor, frames: Tensor, batch: VocoderBatch) -> Tensor:
        """[B, F + 8, 80] kept frames, new ones, then zeros: 4 places are for what waits, 4 are looked ahead into."""
        tail = self.pool.mel_tail.index_select(0, batch.slots)
        size = mel.shape[1] + 2 * self.hift.lookahead
        place = torch.arange(size, device=mel.device)[None]
        held = batch.mel_tails[:, None]
        channels = mel.shape[2]
        kept = tail.gather(1, _columns(place.expand(mel.shape[0], -1), tail.shape[1], channels))
        new = mel.gather(1, _columns(place - held, mel.shape[1], channels))
        joined = torch.where((place < held)[:, :, None], kept, new)
        return torch.where((place < held + frames[:, None])[:, :, None], joined, 0.0)

    def _noise(self, batch: VocoderBatch, frames: int) -> Tensor:
        """[B, 480 frames, H] uniform noise from each row's next sample on."""
        harmonics = self.hift.m_source.harmonics
        first = batch.generated - batch.mel_tails
        drawn = counter_uniform(batch.seeds, first, frames, self.frame_samples * harmonics, int(NoiseDomain.SOURCE))
        return drawn.view(first.shape[0], -1, harmonics)


def _columns(index: Tensor, size: int, channels: int) -> Tensor:
    """Return an index [B, N] as `gather` takes it, within 0..size - 1."""
    return index.clamp(0, size - 1)[:, :, None].expand(-1, -1, channels)
