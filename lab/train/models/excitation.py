"""The excitation that the vocoder is trained with: harmonics that go together, at the phase of the audio to be made.

In use, harmonic n has n times the phase of the first. Where the corpus knows the first one's phase, training can give
the vocoder that very phase.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from lab.ears.pitch import FRAME_SECONDS
from token2wav_service.models.vocoder.source import HarmonicSource

LOUD = 0.33
"""Weights that the merging of harmonics begins with. Those of the bundled vocoder are 0.04 and less: it learnt
from harmonics of independent phases to do without a source, and takes the pitch from the mel."""


@torch.no_grad()
def make_loud(source: HarmonicSource) -> None:
    """Let a source begin with all its harmonics."""
    source.l_linear.weight.fill_(LOUD)
    source.l_linear.bias.zero_()


def known_cycles(pitch: Tensor, phase: Tensor) -> Tensor:
    """Return how many cycles have gone by at the middle of every frame.

    Args:
        pitch: [B, T] Hz.
        phase: [B, T] the fundamental's phase in cycles, 0 to 1; less than 0 where it is not known.

    Returns:
        [B, T] cycles, going on from frame to frame by about what the pitch says; by just that, from anywhere, in rows
        that begin unknown.
    """
    expected = FRAME_SECONDS / 2 * (pitch[:, 1:] + pitch[:, :-1])
    off = torch.remainder(phase[:, 1:] - phase[:, :-1] - expected + 0.5, 1) - 0.5
    is_known = phase[:, :1] >= 0
    start = torch.where(is_known, phase[:, :1], torch.rand_like(phase[:, :1]))
    steps = torch.where(is_known, expected + off, expected)
    return torch.cat([start, start + steps.cumsum(1)], 1)


def served_pitch(pitch: Tensor, cycles: Tensor) -> Tensor:
    """Return the pitch [B, T] in Hz that adds up to given cycles [B, T] as pitch does in use.

    There a frame's pitch is what the phase goes on by from the middle of the frame before to its own. Frames without
    voice, and those behind one, keep theirs.
    """
    is_inside = (pitch[:, 1:] > 0) & (pitch[:, :-1] > 0)
    steps = torch.where(is_inside, cycles.diff(dim=1) / FRAME_SECONDS, pitch[:, 1:])
    return torch.cat([pitch[:, :1], steps], 1)


def served_cycles(pitch: Tensor) -> Tensor:
    """Return the cycles [B, T] that pitch [B, T] in Hz adds up to in use, from anywhere on."""
    return torch.rand_like(pitch[:, :1]) + FRAME_SECONDS * pitch.cumsum(1)


def angles(cycles: Tensor, pitch: Tensor, source: HarmonicSource) -> Tensor:
    """Return the harmonics' phases at every sample.

    Args:
        cycles: [B, T] of the first, at the middle of every frame.
        pitch: [B, T] Hz; what the phase goes on by in the first and the last half frame.
        source: what they are for.

    Returns:
        [B, H, 480 T] radians.
    """
    samples = source.config.frame_samples
    ramp = (torch.arange(samples // 2, device=cycles.device) + 0.5) / samples
    step = FRAME_SECONDS * pitch
    inner = functional.interpolate(cycles[:, None], scale_factor=samples, mode="linear")[:, 0]
    first = cycles[:, :1] - step[:, :1] * ramp.flip(0)
    last = cycles[:, -1:] + step[:, -1:] * ramp
    whole = torch.cat([first, inner[:, samples // 2 : -(samples // 2)], last], 1)
    numbers = torch.arange(1, source.harmonics + 1, device=cycles.device)
    return 2 * math.pi * torch.remainder(whole[:, None] * numbers[:, None], 1)
