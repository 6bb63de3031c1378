"""Harmonic source: the sines and noise that excite the vocoder, all in float32; and what ends each row of a batch.

Rows of different lengths are padded on the right.

Source: specification section 8; differs in that the phase goes on from call to call unless the original's is asked for.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.config import HiFTConfig

SINE_AMPLITUDE_RATIO = 3.0
"""Amplitude of the sine divided by that of unvoiced noise."""


class HarmonicSource(nn.Module):
    """Sines of the pitch and its harmonics, merged to one channel."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        self.harmonics = config.nb_harmonics + 1
        self.l_linear = nn.Linear(self.harmonics, 1)

    def forward(self, f0: Tensor, noise: Tensor, phase: Tensor) -> Tensor:
        """Make the source signal.

        Args:
            f0: [B, T] pitch in Hz.
            noise: [B, N, H] standard normal, N = 480 T, H harmonics; zeros switch the noise off.
            phase: [B, H, N] radians, from `harmonic_phase`.

        Returns:
            [B, 1, N] source in +-1.
        """
        voiced = self.voiced(f0)
        amplitude = self.config.nsf_sigma * voiced + self.config.nsf_alpha / SINE_AMPLITUDE_RATIO * (1 - voiced)
        return torch.tanh(self.l_linear(self.sines(f0, phase) + noise * amplitude)).transpose(1, 2)

    def sines(self, f0: Tensor, phase: Tensor) -> Tensor:
        """Return [B, N, H] sines, zero where unvoiced."""
        return (self.config.nsf_alpha * torch.sin(phase)).transpose(1, 2) * self.voiced(f0)

    def voiced(self, f0: Tensor) -> Tensor:
        """Return [B, N, 1], 1 where the pitch is above the threshold."""
        voiced = (f0 > self.config.nsf_voiced_threshold).float()
        return voiced.repeat_interleave(self.config.frame_samples, dim=1)[:, :, None]

    def phase(self, f0: Tensor, lengths: Tensor | None = None, *, is_reference: bool = False) -> tuple[Tensor, Tensor]:
        """Integrate the pitch.

        Args:
            f0: [B, T] pitch in Hz.
            lengths: [B] int64 valid frames (1 or more) on f0's device; None where all rows are full.
            is_reference: hold the phase for the first and last half frame, as upstream does.

        Returns:
            Phase [B, H, N] in radians starting at 0, and [B, H, T] its value at the frames' right edges (used
            to continue in a later call). Beyond a row's end the phase has no meaning and the edges repeat the last.
        """
        samples = self.config.frame_samples
        numbers = torch.arange(1, self.harmonics + 1, device=f0.device, dtype=f0.dtype)
        cycles = hold_last((f0[:, None, :] * numbers[:, None] / self.config.sampling_rate) % 1, lengths)
        # The last value is repeated, so that the interpolation clamps at each row's own end.
        at_frames = hold_last(samples * 2 * math.pi * torch.cumsum(cycles, dim=2), lengths)
        phase = functional.interpolate(at_frames, scale_factor=samples, mode="linear")
        half = samples // 2
        step = samples * 2 * math.pi * cycles
        following = torch.cat([step[:, :, 1:], step[:, :, -1:]], 2)
        if not is_reference:
            # The phase goes on at the edge's pitch.
            ramp = (torch.arange(half, device=f0.device, dtype=f0.dtype) + 0.5) / samples
            tail = at_frames[:, :, -1:] + step[:, :, -1:] * ramp
            phase = _with_tail(phase, tail, None if lengths is None else lengths * samples)
            phase[:, :, :half] = at_frames[:, :, :1] - step[:, :, :1] * ramp.flip(0)
        return phase, at_frames + following / 2


def _with_tail(phase: Tensor, tail: Tensor, ends: Tensor | None) -> Tensor:
    """Overwrite the last samples [B, H, N] of each row, which ends at `ends` [B], by `tail` [B, H, n]."""
    size = tail.shape[2]
    if ends is None:
        phase[:, :, -size:] = tail
        return phase
    index = ends[:, None, None] - size + torch.arange(size, device=phase.device)
    return phase.scatter(2, index.expand_as(tail), tail)


def valid_mask(lengths: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return [B, 1, size], 1 before each row's end and 0 from there on; `lengths` is [B] int64."""
    return (torch.arange(size, device=lengths.device) < lengths[:, None])[:, None].to(dtype)


def cleared(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x with zeros beyond the rows' ends, whatever is there (NaN and infinity included)."""
    return x if mask is None else x.masked_fill(mask == 0, 0.0)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x times the mask; x must be finite. Without a mask, x itself."""
    return x if mask is None else x * mask


def add_masked(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """Return x + y times the mask, in one pass."""
    return x + y if mask is None else torch.addcmul(x, y, mask)


def last_valid(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return each row's last value: [B, C, T] to [B, C, 1]."""
    if lengths is None:
        return x[:, :, -1:]
    return x.gather(2, (lengths - 1)[:, None, None].expand(-1, x.shape[1], 1))


def hold_last(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Repeat each row's last value over its padding: [B, C, T] to the same shape."""
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[2], device=x.device) >= lengths[:, None, None]
    return torch.where(beyond, last_valid(x, lengths), x)


def reflect_ends(samples: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Pad [B, N] by `width` at both sides, each row reflected at its own end; [B, N + 2 width].

    Only valid samples are read. What lies more than `width` beyond a row's end has no meaning.
    """
    index = torch.arange(-width, samples.shape[1] + width, device=samples.device).abs()
    ends = lengths[:, None] - 1
    return samples.gather(1, (ends - (index - ends).abs()).clamp(min=0))


def overlap_add(spectrum: Tensor, mask: Tensor, window: Tensor, hop: int) -> Tensor:
    """Inverse STFT in which masked frames do not exist.

    Unlike `torch.istft` it gives each row its own window envelope, and does not wait for the device.

    Args:
        spectrum: [B, n_fft / 2 + 1, F] complex, finite.
        mask: [B or 1, 1, F], 1 in frames that exist, else 0.
        window: [n_fft].
        hop: samples between frames.

    Returns:
        [B, hop (F - 1) + n_fft] samples, from the first frame's begin on.
    """
    size = window.shape[0]
    frames = torch.fft.irfft(spectrum, size, dim=1) * window[:, None] * mask
    samples = _fold(frames, hop)
    envelope = _fold((window**2)[:, None] * mask, hop)
    # Within a row the envelope is far from 0; beyond, both are 0.
    return samples / envelope.clamp(min=torch.finfo(envelope.dtype).tiny)


def _fold(frames: Tensor, hop: int) -> Tensor:
    """Add up overlapping frames [B, n_fft, F] into [B, hop (F - 1) + n_fft]."""
    size, count = frames.shape[1:]
    return functional.fold(frames, (1, hop * (count - 1) + size), (1, size), stride=(1, hop))[:, 0, 0]
