"""The vocoder's operations: what each computes, on which shapes, and how its kernel is launched.

All tensors are channels last. `lengths` [B] int64 counts mel frames; a row ends at `lengths * scale + extra` columns,
and every result is 0 from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from token2wav_service.runtime.kernels import vocoder_kernels as kernels

ELEMENTS = 1024
MAX_BRANCHES = 3
ENOUGH_BLOCKS = 200
"""Blocks of a launch that keep a GPU of 132 multiprocessors busy; with fewer, smaller tiles are taken."""
SAME_PAD = -1
SPECTRUM_CHANNELS = 32
"""Channels that a spectrum is padded to with zeros."""


@dataclass(frozen=True)
class Activation:
    """What is applied to a convolution's result before it is stored a second time."""

    kind: int
    alpha: Tensor | None = None
    """[branches, C] float32 alpha of a snake; None for other kinds."""
    slope: float = 0.0
    """Slope of a leaky ReLU."""


@dataclass(frozen=True)
class Convolution:
    """Packed weights of one convolution, or of up to three whose results stand side by side."""

    weight: Tensor
    """Weights [taps of all branches, C_in, C_out]."""
    bias: Tensor
    """[branches, C_out] float32."""
    taps: tuple[int, ...]
    """Number of taps of each branch."""
    dilation: int = 1
    stride: int = 1
    pad: int = SAME_PAD
    """Columns before the first tap; `SAME_PAD` for as many as behind the last."""


@dataclass(frozen=True)
class Ends:
    """Where rows end, in columns."""

    lengths: Tensor
    scale: int
    extra: int = 0


@dataclass(frozen=True)
class Tiles:
    """Block shape and launch options of a convolution."""

    columns: int
    channels: int
    inner: int
    warps: int
    stages: int


def convolve(
    x: Tensor,
    convolution: Convolution,
    ends: Ends,
    columns: int,
    *,
    residual: Tensor | None = None,
    activation: Activation | None = None,
    keeps_plain: bool = True,
    dtype: torch.dtype | None = None,
    tiles: Tiles | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Convolve every branch.

    Args:
        x: [B, N_in, C_in], read by every branch, or [branches, B, N_in, C_in].
        convolution: its weights are in x's dtype.
        ends: of the result.
        columns: N of the result.
        residual: [B, N, C_out] or [branches, B, N, C_out], added to the result.
        activation: of the second result.
        keeps_plain: whether the first result, without activation, is wanted.
        dtype: of the results; None for x's.
        tiles: None chooses them.

    Returns:
        The two results, [B, N, C_out] for one branch, else [branches, B, N, C_out]; None for what is not wanted.
    """
    c = convolution
    branches, streams = len(c.taps), x.shape[-3]
    inner, channels = c.weight.shape[1:]
    is_shared = x.dim() == 3
    shape = (streams, columns, channels) if branches == 1 else (branches, streams, columns, channels)
    plain = x.new_empty(shape, dtype=dtype or x.dtype) if keeps_plain else None
    activated = x.new_empty(shape, dtype=dtype or x.dtype) if activation else None
    t = tiles or choose_tiles(x, inner, channels, columns, streams * branches)
    taps = (*c.taps, *[0] * (MAX_BRANCHES - branches))
    alpha = None if activation is None else activation.alpha
    grid = (triton.cdiv(columns, t.columns) * triton.cdiv(channels, t.channels), streams, branches)
    kernels.convolution_kernel[grid](
        x, c.weight, c.bias, c.bias if alpha is None else alpha, x if residual is None else residual,
        x if plain is None else plain, x if activated is None else activated, ends.lengths,
        0 if is_shared else x.stride(0), 0 if residual is None or residual.dim() == 3 else residual.stride(0),
        x.shape[-2], columns, streams, *taps, ends.scale, ends.extra, c.dilation, c.pad,
        activation.slope if activation else 0.0, CIN=inner, COUT=channels, STRIDE=c.stride,
        HAS_RESIDUAL=residual is not None, HAS_OUT=keeps_plain,
        ACTIVATION=activation.kind if activation else kernels.NONE.value, PRECISION=_precision(),
        BM=t.columns, BN=t.channels, BK=t.inner, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return plain, activated


def choose_tiles(x: Tensor, inner: int, channels: int, columns: int, rows: int) -> Tiles:
    """Return the largest tiles that still give every multiprocessor a block; without a GPU, one tile for all.

    Args:
        x: what is convolved.
        inner, channels: C_in and C_out.
        columns: of one row.
        rows: streams times branches.
    """
    if not x.is_cuda:
        # The interpreter takes its time per block, whatever the size.
        height, width, depth = (max(16, triton.next_power_of_2(size)) for size in (columns, channels, inner))
        return Tiles(height, width, depth, warps=4, stages=1)
    height, width = 64 if columns <= 64 else 128, min(256, max(16, triton.next_power_of_2(channels)))
    while triton.cdiv(columns, height) * triton.cdiv(channels, width) * rows < ENOUGH_BLOCKS:
        if width > 64 or (height == 64 and width > 32):
            width //= 2
        elif height > 64:
            height = 64
        else:
            break
    depth = next((k for k in (64, 32) if inner % k == 0), 32 if inner > 16 else 16)
    is_half = x.dtype.itemsize == 2
    warps = 8 if height * width > 128 * 64 else 4
    return Tiles(height, width, depth if is_half else min(depth, 32), warps, 3 if height > 64 else 4)


def fan_out(first: Tensor, second: Tensor, alphas: Tensor, ends: Ends, is_shifted: bool) -> tuple[Tensor, Tensor]:
    """Return first + second [B, N, C], and its snakes [branches, B, N, C].

    Args:
        first: [B, N, C], or [B, N - 1, C] to be reflected by one column on the left.
        second: [B, N, C].
        alphas: [branches, C].
        ends: of the sum.
        is_shifted: whether `first` is reflected.
    """
    streams, columns, channels = second.shape
    size, branches = columns * channels, alphas.shape[0]
    out = torch.empty_like(second)
    activated = second.new_empty(branches, *second.shape)
    grid = (triton.cdiv(size, ELEMENTS), streams)
    kernels.fan_out_kernel[grid](
        first, second, alphas, out, activated, ends.lengths, size, out.numel(), columns, ends.scale, ends.extra,
        C=channels, SHIFT=int(is_shifted), BRANCHES=branches, BLOCK=ELEMENTS, num_warps=4,
    )  # fmt: skip
    return out, activated


def mean_leaky(x: Tensor, slope: float) -> Tensor:
    """Return the leaky ReLU of the mean over x's first axis."""
    out = torch.empty_like(x[0])
    grid = (triton.cdiv(out.numel(), ELEMENTS),)
    kernels.mean_kernel[grid](x, out, out.numel(), slope, BRANCHES=x.shape[0], BLOCK=ELEMENTS, num_warps=4)
    return out


def join_tail(
    tail: Tensor, mel: Tensor, slots: Tensor, tail_lengths: Tensor, lengths: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Put each stream's kept frames and its new ones side by side.

    Args:
        tail: [slots, C, W] float32.
        mel: [B, F, C] float32.
        slots, tail_lengths, lengths: [B] int64; frames kept, and new ones.
        dtype: of the second result.

    Returns:
        [B, F + W, C] float32, zeros behind a row's end, and the same in `dtype`.
    """
    streams, frames, channels = mel.shape
    width = tail.shape[2]
    out = mel.new_empty(streams, frames + width, channels)
    half = torch.empty_like(out, dtype=dtype)
    kernels.join_kernel[(frames + width, streams)](
        tail, mel, slots, tail_lengths, lengths, out, half, frames, frames + width,
        C=channels, BLOCK_C=triton.next_power_of_2(channels), TAIL=width, num_warps=1,
    )  # fmt: skip
    return out, half


@dataclass(frozen=True)
class Phases:
    """A source's phase at frames, radians."""

    at_frames: Tensor
    """[B, H, T] phase at the frames' centres."""
    step: Tensor
    """[B, H, T] change of the phase over a frame."""
    offset: Tensor
    """[B, H] offset that continues the phase from the previous chunk's end."""


def integrate_pitch(
    pitch: Tensor,
    lengths: Tensor,
    tail_lengths: Tensor,
    has_speech: Tensor,
    slots: Tensor,
    carried: Tensor,
    samples: int,
    rate: int,
) -> Phases:
    """Integrate the pitch of every harmonic, and carry the phase from chunk to chunk.

    Args:
        pitch: [B, T] Hz; its sign is dropped.
        lengths, tail_lengths: [B] frames, and those of them that the previous chunk had as well.
        has_speech: [B] not 0 where there was a previous chunk.
        slots: [B].
        carried: [slots, H] float32 phase at the previous chunk's end; this chunk's is written there.
        samples: of a frame.
        rate: samples a second.
    """
    streams, frames = pitch.shape
    harmonics = carried.shape[1]
    at_frames = pitch.new_empty(streams, harmonics, frames)
    found = Phases(at_frames, torch.empty_like(at_frames), pitch.new_empty(streams, harmonics))
    kernels.phase_kernel[(streams,)](
        pitch, lengths, tail_lengths, has_speech, slots, carried, found.at_frames, found.step, found.offset,
        frames, samples * kernels.TWO_PI.value, rate, samples,
        HARMONICS=harmonics, BLOCK=triton.next_power_of_2(frames), num_warps=4,
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class SourceMerge:
    """How sines and noise become one channel."""

    weight: Tensor
    """[H] float32 weights of the sines."""
    bias: Tensor
    """[1] float32."""
    amplitude: float
    sigma: float
    threshold_hz: float


def make_source(
    pitch: Tensor,
    phases: Phases,
    noise: Tensor,
    merge: SourceMerge,
    lengths: Tensor,
    has_speech: Tensor,
    slots: Tensor,
    cached: Tensor,
    samples: int,
) -> Tensor:
    """Return the source [B, samples T] float32, begun with the previous chunk's last samples.

    Args:
        pitch: [B, T] Hz; its sign is dropped.
        phases: of the same pitch.
        noise: [B, T, samples H] standard normal.
        merge: weights and amplitudes.
        lengths, has_speech, slots: as in `integrate_pitch`.
        cached: [slots, overlap] samples that a row with speech begins with.
        samples: of a frame.
    """
    streams, frames = pitch.shape
    size = frames * samples
    out = pitch.new_empty(streams, size)
    block = _block(out, 64)
    grid = (triton.cdiv(size, block), streams)
    kernels.source_kernel[grid](
        pitch, phases.at_frames, phases.step, phases.offset, noise, merge.weight, merge.bias, lengths, has_speech,
        slots, cached, out, frames, samples, size, cached.shape[1], merge.amplitude, merge.sigma, merge.threshold_hz,
        HARMONICS=phases.step.shape[1], BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


class Spectrum:
    """Short-time Fourier transform and its inverse, as products with small tables."""

    def __init__(self, window: Tensor, hop: int, frame_samples: int) -> None:
        """Make the tables.

        Args:
            window: [n_fft] float32; n_fft is at most 30.
            hop: samples between columns.
            frame_samples: samples of a mel frame.
        """
        self.size, self.hop, self.frame_samples = window.shape[0], hop, frame_samples
        self.bins = self.size // 2 + 1
        self.window = window
        time = torch.arange(self.size, dtype=torch.float64)
        angle = 2 * torch.pi / self.size * time[:, None] * torch.arange(self.bins)[None, :]
        shape = window.double().cpu()[:, None]
        forward = torch.zeros(self.size, SPECTRUM_CHANNELS, dtype=torch.float64)
        forward[:, : self.bins] = shape * angle.cos()
        forward[:, self.bins : 2 * self.bins] = -shape * angle.sin()
        # Each bin but the first and the last counts twice.
        twice = torch.full((self.bins,), 2.0, dtype=torch.float64)
        twice[0] = twice[-1] = 1.0
        inverse = torch.zeros(2, self.size, 16, dtype=torch.float64)
        inverse[0, :, : self.bins] = shape * angle.cos() * twice / self.size
        inverse[1, :, : self.bins] = -shape * angle.sin() * twice / self.size
        self.forward_table = forward.float().to(window.device)
        self.inverse_table = inverse.float().to(window.device)

    def analyse(self, source: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """Return [B, N / hop + 1, 32]: real parts, then imaginary ones, then zeros.

        Args:
            source: [B, N] float32.
            lengths: [B] mel frames; samples are reflected at a row's own end.
            dtype: of the result.
        """
        streams, size = source.shape
        columns = size // self.hop + 1
        out = source.new_empty(streams, columns, SPECTRUM_CHANNELS, dtype=dtype)
        block = _block(out, 32)
        kernels.stft_kernel[(triton.cdiv(columns, block), streams)](
            source, self.forward_table, lengths, out, size, columns, self.frame_samples, self.frame_samples // self.hop,
            N_FFT=self.size, HOP=self.hop, C=SPECTRUM_CHANNELS, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return out

    def synthesise(self, spectra: Tensor, lengths: Tensor, limits: tuple[float, float], fades: Fades | None) -> Tensor:
        """Return samples [B, hop (N - 1)] float32, 0 beyond a row's end.

        Args:
            spectra: [B, N, 2 bins] log magnitudes, then phases before their sine.
            lengths: [B] mel frames.
            limits: of the samples and of the magnitudes.
            fades: how to join the previous chunk's samples.
        """
        streams, columns = spectra.shape[:2]
        size = (columns - 1) * self.hop
        out = spectra.new_empty(streams, size, dtype=torch.float32)
        block = _block(out, 32)
        none = (lengths, lengths, out, out)
        joined = (fades.has_speech, fades.slots, fades.held, fades.window) if fades else none
        kernels.istft_kernel[(triton.cdiv(columns - 1, block), streams)](
            spectra, self.inverse_table, self.window, lengths, *joined, out, columns, size, self.frame_samples,
            self.frame_samples // self.hop, fades.held.shape[1] if fades else 0, *limits,
            N_FFT=self.size, HOP=self.hop, BINS=self.bins, FADES=fades is not None, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return out


@dataclass(frozen=True)
class Fades:
    """How a chunk's first samples are joined to those that the previous one held back."""

    has_speech: Tensor
    """[B] not 0 if there was a previous chunk."""
    slots: Tensor
    """[B] slots of the rows."""
    held: Tensor
    """[slots, overlap] float32 samples held back."""
    window: Tensor
    """[2 overlap] float32, rising, then falling."""


def keep_tails(
    mel: Tensor, source: Tensor, speech: Tensor, slots: Tensor, lengths: Tensor, tails: Sequence[Tensor]
) -> None:
    """Keep the last frames of every row.

    Args:
        mel: [B, T, C] float32.
        source, speech: [B, N] float32.
        slots, lengths: [B] int64; frames.
        tails: [slots, C, W], and [slots, N W / T] twice, where they are written.
    """
    streams, columns, channels = mel.shape
    width = tails[0].shape[2]
    size = source.shape[1]
    grid = (triton.cdiv(max(tails[1].shape[1], channels * width), ELEMENTS), streams)
    kernels.keep_kernel[grid](
        mel, source, speech, slots, lengths, *tails, columns, size, size // columns,
        C=channels, TAIL=width, BLOCK=ELEMENTS, num_warps=4,
    )  # fmt: skip


def _block(x: Tensor, size: int) -> int:
    """Return the elements of a block; Triton's interpreter takes its time per block, whatever the size."""
    return size if x.is_cuda else 1024


def _precision() -> str:
    """Float32 products follow PyTorch's own setting for convolutions; half-precision ones ignore it."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
