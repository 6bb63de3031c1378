"""Mel to audio for streams whose state lives in slots; fit to be captured as a CUDA graph.

What `models/vocoder_stream.py` computes, with rows at the beginning, middle and end of their streams in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from token2wav_service.config import SourcePhase, SynthesisPolicy
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES, crossfade_window
from token2wav_service.runtime.kernels import vocoder_ops as ops
from token2wav_service.runtime.kernels.ops import counter_noise
from token2wav_service.runtime.slots.pool import VocoderPool
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.types import FloatArray


@dataclass
class VocoderProgress:
    """The host's half of one stream's vocoder state."""

    mel_tail: int = 0
    """Mel frames that are kept to be vocoded with the next ones."""
    has_speech: bool = False
    """True once the vocoder has run."""


class VocoderBatch(Protocol):
    """What the vocoder reads of a batch; every tensor [B] int64 on the device."""

    @property
    def slots(self) -> Tensor: ...

    @property
    def generated(self) -> Tensor:
        """Mel frames of each stream before these."""
        ...

    @property
    def is_last(self) -> Tensor: ...

    @property
    def seeds(self) -> Tensor: ...

    @property
    def mel_tails(self) -> Tensor: ...

    @property
    def has_speech(self) -> Tensor: ...


class SlotVocoder:
    """Vocodes on a pool; holds the model, no stream."""

    def __init__(
        self,
        hift: HiFT,
        policy: SynthesisPolicy,
        pool: VocoderPool,
        dtype: torch.dtype,
        network: VocoderNetwork | None = None,
    ) -> None:
        """Pack the weights.

        Args:
            hift: float32, weight norms folded.
            policy: cross-fade and source phase.
            pool: states.
            dtype: the flow's. With half precision the vocoder's products are float16 in either kind, which keeps more
                of the wave than bfloat16 does.
            network: runs the convolutions; None takes the fused kernels.
        """
        self.policy, self.pool = policy, pool
        products = torch.float32 if dtype == torch.float32 else torch.float16
        self.network = network or VocoderNetwork(hift, products)
        self.frame_samples = hift.config.frame_samples
        self.overlap = OVERLAP_FRAMES * self.frame_samples
        self.fade = crossfade_window(policy.crossfade, self.overlap).float().to(pool.mel_tail.device)
        c, linear = hift.config, hift.m_source.l_linear
        self.harmonics, self.rate = hift.m_source.harmonics, c.sampling_rate
        self.merge = ops.SourceMerge(
            linear.weight.detach().float().flatten(), linear.bias.detach().float(), c.nsf_alpha, c.nsf_sigma,
            c.nsf_voiced_threshold,
        )  # fmt: skip

    def run(self, mel: Tensor, frames: Tensor, batch: VocoderBatch) -> Tensor:
        """Vocode [tail | new frames] of every row and keep what the next chunk needs.

        Rows that are not ready (no speech yet, fewer frames than the overlap, not last) only keep their frames.

        Args:
            mel: [B, F, 80] float32 new frames, padded on the right.
            frames: [B] valid new frames.

        Returns:
            Samples [B, 480 (F + 8)] float32, joined to the previous chunk; a row that is not last holds back its
            valid samples' last 3840.
        """
        pool, slots = self.pool, batch.slots
        joined, half = ops.join_tail(pool.mel_tail, mel, slots, batch.mel_tails, frames, self.network.dtype)
        lengths = batch.mel_tails + frames
        source = self._source(half, lengths, batch)
        fades = ops.Fades(batch.has_speech, slots, pool.speech_tail, self.fade)
        speech = self.network.decode(half, source, lengths, fades)
        tails = (pool.mel_tail, pool.source_tail, pool.speech_tail)
        ops.keep_tails(joined, source, speech, slots, lengths, tails)
        return speech

    def deliver(self, progress: VocoderProgress, frames: int, speech: FloatArray, *, is_last: bool) -> FloatArray:
        """Move a stream's progress on by `frames` new ones, and cut its row of samples to what can be given out."""
        total = progress.mel_tail + frames
        is_ready = is_last or progress.has_speech or total >= OVERLAP_FRAMES
        progress.mel_tail = min(total, OVERLAP_FRAMES)
        if not is_ready:
            return np.zeros(0, np.float32)
        progress.has_speech = True
        return speech[: total * self.frame_samples - (0 if is_last else self.overlap)].copy()

    def _source(self, mel: Tensor, lengths: Tensor, batch: VocoderBatch) -> Tensor:
        """Source [B, N] with the cached beginning; the phase at each row's right edge is kept."""
        continues = self.policy.source_phase is SourcePhase.CONTINUOUS
        pitch = self.network.predict_pitch(mel, lengths)
        phases = ops.integrate_pitch(
            pitch, lengths, batch.mel_tails, batch.has_speech, batch.slots, self.pool.phase, self.frame_samples,
            self.rate, continues,
        )  # fmt: skip
        width = self.frame_samples * self.harmonics
        start = batch.generated - batch.mel_tails
        noise = counter_noise(batch.seeds, start, mel.shape[1], width, int(NoiseDomain.SOURCE))
        return ops.make_source(
            pitch, phases, noise, self.merge, lengths, batch.has_speech, batch.slots, self.pool.source_tail,
            self.frame_samples, continues,
        )  # fmt: skip
