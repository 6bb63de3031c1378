"""Mel to audio for streams whose state lives in slots; fit to be captured as a CUDA graph.

What the streams' vocoders of `models/vocoder/` compute, with rows at the beginning, middle and end of their streams in
one batch. HiFT runs on fused kernels; CosyVoice3's network is the plain module, in float32 with its pitch in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.models.vocoder.causal_hift import CausalHiFT, CausalState, Spectra
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES, crossfade_window
from token2wav_service.runtime.kernels import vocoder_ops as ops
from token2wav_service.runtime.kernels.ops import counter_noise, counter_uniform
from token2wav_service.runtime.slots.pool import SlotBatch
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.types import FloatArray


@dataclass
class VocoderProgress:
    """The host's half of one stream's vocoder state."""

    mel_tail: int = 0
    """Mel frames that are kept to be vocoded with the next ones."""
    has_speech: bool = False
    """True once the vocoder has run."""


@dataclass(frozen=True)
class VocoderPool:
    """What HiFT keeps of streams; first axis S is the slot."""

    mel_tail: Tensor
    """[S, 80, 8] float32, left aligned."""
    source_tail: Tensor
    """[S, 3840] float32."""
    speech_tail: Tensor
    """[S, 3840] float32."""
    phase: Tensor
    """[S, H] float32."""


@dataclass(frozen=True)
class CausalVocoderPool:
    """What the causal vocoder keeps of streams; first axis S is the slot."""

    mel_tail: Tensor
    """[S, 4, 80] float32, left aligned: frames that wait for the ones behind them."""
    floats: Tensor
    """[S, num_floats] float32, see `CausalState`."""
    doubles: Tensor
    """[S, num_doubles] float64."""


def allocate_vocoder(slots: int, vocoder: HiFT | CausalHiFT) -> VocoderPool | CausalVocoderPool:
    """Allocate a vocoder's part of a pool, zeroed."""
    c = vocoder.config

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(slots, *shape, device=vocoder.window.device)

    if isinstance(vocoder, CausalHiFT):
        state = vocoder.initial_state(slots)
        return CausalVocoderPool(zeros(vocoder.lookahead, c.in_channels), state.floats, state.doubles)
    overlap = OVERLAP_FRAMES * c.frame_samples
    return VocoderPool(zeros(c.in_channels, OVERLAP_FRAMES), zeros(overlap), zeros(overlap), zeros(c.nb_harmonics + 1))


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
            policy: cross-fade; the source's phase is continuous.
            pool: states.
            dtype: the flow's. With half precision the vocoder's products are float16 in either kind, which keeps more
                of the wave than bfloat16 does.
            network: runs the convolutions; None takes the fused kernels.
        """
        self.pool = pool
        products = torch.float32 if dtype == torch.float32 else torch.float16
        self.network = network or VocoderNetwork(hift, products)
        self.frame_samples = hift.config.frame_samples
        self.overlap = OVERLAP_FRAMES * self.frame_samples
        self.fade = crossfade_window(policy, self.overlap).float().to(pool.mel_tail.device)
        c, linear = hift.config, hift.m_source.l_linear
        self.harmonics, self.rate = hift.m_source.harmonics, c.sampling_rate
        self.merge = ops.SourceMerge(
            linear.weight.detach().float().flatten(), linear.bias.detach().float(), c.nsf_alpha, c.nsf_sigma,
            c.nsf_voiced_threshold,
        )  # fmt: skip

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

    def _source(self, mel: Tensor, lengths: Tensor, batch: SlotBatch) -> Tensor:
        """Source [B, N] with the cached beginning; the phase at each row's right edge is kept."""
        pitch = self.network.predict_pitch(mel, lengths)
        phases = ops.integrate_pitch(
            pitch, lengths, batch.mel_tails, batch.has_speech, batch.slots, self.pool.phase, self.frame_samples,
            self.rate,
        )  # fmt: skip
        width = self.frame_samples * self.harmonics
        start = batch.generated - batch.mel_tails
        noise = counter_noise(batch.seeds, start, mel.shape[1], width, int(NoiseDomain.SOURCE))
        return ops.make_source(
            pitch, phases, noise, self.merge, lengths, batch.has_speech, batch.slots, self.pool.source_tail,
            self.frame_samples,
        )  # fmt: skip


class CausalSlotVocoder:
    """Vocodes on a pool; holds the model, no stream."""

    def __init__(self, hift: CausalHiFT, pool: CausalVocoderPool, spectra: Spectra | None = None) -> None:
        """Hold the model.

        Args:
            hift: float32, on its device, weight norms folded.
            pool: states.
            spectra: runs the convolutions; None takes the model's own.
        """
        self.hift, self.pool, self.spectra = hift, pool, spectra or hift.spectra
        self.frame_samples = hift.config.frame_samples

    def run(self, mel: Tensor, frames: Tensor, batch: SlotBatch) -> Tensor:
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
        wave, after = self.hift(joined.transpose(1, 2), decoded, is_last, before, noise, self.spectra)
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

    def _joined(self, mel: Tensor, frames: Tensor, batch: SlotBatch) -> Tensor:
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

    def _noise(self, batch: SlotBatch, frames: int) -> Tensor:
        """[B, 480 frames, H] uniform noise from each row's next sample on."""
        harmonics = self.hift.m_source.harmonics
        first = batch.generated - batch.mel_tails
        drawn = counter_uniform(batch.seeds, first, frames, self.frame_samples * harmonics, int(NoiseDomain.SOURCE))
        return drawn.view(first.shape[0], -1, harmonics)


def _columns(index: Tensor, size: int, channels: int) -> Tensor:
    """Return an index [B, N] as `gather` takes it, within 0..size - 1."""
    return index.clamp(0, size - 1)[:, :, None].expand(-1, -1, channels)
