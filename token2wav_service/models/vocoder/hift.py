"""HiFT vocoder: mel to pitch and to audio, through a harmonic source and an inverse STFT. All in float32.

It knows nothing of streams; the joins between chunks are in `vocoder_stream.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from token2wav_service.models.config import HiFTConfig
from token2wav_service.models.vocoder.source import (
    HarmonicSource,
    add_masked,
    cleared,
    masked,
    overlap_add,
    reflect_ends,
    valid_mask,
)

F0_LAYERS = 5


class F0Predictor(nn.Module):
    """Five convolutions and a linear layer. Source: specification section 8."""

    def __init__(self, in_channels: int, cond_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for layer in range(F0_LAYERS):
            channels = in_channels if layer == 0 else cond_channels
            layers += [weight_norm(nn.Conv1d(channels, cond_channels, 3, padding=1)), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(cond_channels, 1)

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map mel to pitch.

        Args:
            mel: [B, 80, T] float32.
            lengths: [B] int64 valid frames (1 or more) on mel's device; None where all rows are full.

        Returns:
            [B, T] Hz, 0 or more; below 10 is unvoiced. Without meaning beyond a row's end.
        """
        mask = None if lengths is None else valid_mask(lengths, mel.shape[2], mel.dtype)
        x = cleared(mel, mask)
        layers = list(self.condnet)
        for conv, activation in zip(layers[::2], layers[1::2], strict=True):
            x = activation(masked(conv(x), mask))
        return torch.abs(self.classifier(x.transpose(1, 2)).squeeze(-1))


M = TypeVar("M", bound=nn.Module)

FINAL_LEAKY_SLOPE = 0.01
"""Slope of the activation before conv_post; the stages use the configured slope."""
MAX_MAGNITUDE = 100.0


class HiFT(nn.Module):
    """The upstream HiFTGenerator, with its parameter names. Source: specification section 8."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        channels, spectrum = stage_channels(config), config.istft_n_fft + 2
        self.m_source = HarmonicSource(config)
        self.f0_predictor = F0Predictor(config.in_channels, config.f0_cond_channels)
        self.conv_pre = weight_norm(nn.Conv1d(config.in_channels, channels[0], 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(channels[i], channels[i + 1], kernel, rate, padding=(kernel - rate) // 2))
            for i, (rate, kernel) in enumerate(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True))
        )
        self.source_downs = nn.ModuleList(
            _source_down(spectrum, channels[i + 1], stride) for i, stride in enumerate(source_strides(config))
        )
        self.source_resblocks, self.resblocks = residual_blocks(config, _same_conv)
        self.conv_post = weight_norm(nn.Conv1d(channels[-1], spectrum, 7, padding=3))
        self.register_buffer("window", torch.hann_window(config.istft_n_fft, periodic=True), persistent=False)
        self.window: Tensor

    def forward(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Decode mel with a given source; every row as if it were alone.

        Args:
            mel: [B, 80, T] float32.
            source: [B, 1, 480 T] from `m_source`, possibly with a cached beginning.
            lengths: [B] int64 valid frames (1 or more) on mel's device, with anything in the padding behind them; None
                where all rows are full.

        Returns:
            [B, 480 T] samples within +-audio_limit, 0 beyond a row's end.
        """
        spectra = self.spectra(mel, self.stft(source.squeeze(1), lengths), lengths)
        samples = self.samples(spectra, self._column_mask(lengths, spectra))
        if lengths is None:
            return samples
        ends = lengths * self.config.frame_samples
        return masked(samples, valid_mask(ends, samples.shape[1], samples.dtype)[:, 0])

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run the convolutions: everything between the source's STFT and the inverse STFT.

        Args:
            mel, lengths: as in `forward`.
            spectrum: [B, n_fft + 2, 120 T + 1] from `stft`.

        Returns:
            [B, n_fft + 2, 120 T + 1], log magnitudes, then phases before their sine.
        """
        masks = self._masks(lengths, mel)
        x = masked(self.conv_pre(cleared(mel, masks[0])), masks[0])
        last = len(self.ups) - 1
        per_stage = len(self.config.resblock_kernel_sizes)
        for stage, (up, mask) in enumerate(zip(self.ups, masks[1:], strict=True)):
            x = up(functional.leaky_relu(x, self.config.lrelu_slope))
            if stage == last:
                x = functional.pad(x, (1, 0), mode="reflect")
            excitation = masked(self.source_downs[stage](spectrum), mask)
            x = masked(x + self.source_resblocks[stage](excitation, mask), mask)
            blocks = list(self.resblocks[stage * per_stage : (stage + 1) * per_stage])
            x = torch.stack([block(x, mask) for block in blocks]).mean(0)
        return torch.as_tensor(self.conv_post(functional.leaky_relu(x, FINAL_LEAKY_SLOPE)))

    def stft(self, samples: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map source samples [B, N] to [B, n_fft + 2, N / hop + 1]: real parts, then imaginary ones.

        `lengths` counts mel frames, as in `forward`; beyond a row's end the spectrum is 0.
        """
        c = self.config
        if lengths is not None:
            samples = reflect_ends(samples, lengths * c.frame_samples, c.istft_n_fft // 2)
        spectrum = torch.stft(
            samples, c.istft_n_fft, c.istft_hop, window=self.window, center=lengths is None, return_complex=True
        )
        parts = torch.cat([spectrum.real, spectrum.imag], 1)
        return masked(parts, self._column_mask(lengths, parts))

    def _column_mask(self, lengths: Tensor | None, spectra: Tensor) -> Tensor | None:
        """Return the mask of the columns of spectra [B, C, 120 T + 1]."""
        if lengths is None:
            return None
        ends = lengths * (self.config.frame_samples // self.config.istft_hop) + 1
        return valid_mask(ends, spectra.shape[2], spectra.dtype)

    def _masks(self, lengths: Tensor | None, mel: Tensor) -> list[Tensor | None]:
        """Return the mask at mel frames and after each stage."""
        rates = self.config.upsample_rates
        if lengths is None:
            return [None] * (len(rates) + 1)
        scale = 1
        masks: list[Tensor | None] = [valid_mask(lengths, mel.shape[2], mel.dtype)]
        for stage, rate in enumerate(rates):
            scale *= rate
            # The last stage is reflected by one column on the left.
            extra = int(stage == len(rates) - 1)
            masks.append(valid_mask(lengths * scale + extra, mel.shape[2] * scale + extra, mel.dtype))
        return masks

    def samples(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map what `spectra` returned to samples.

        Args:
            x: [B, n_fft + 2, F].
            mask: [B or 1, 1, F], 1 in columns that exist; None where all do, which waits for the device.

        Returns:
            [B, hop (F - 1)] samples within +-audio_limit.
        """
        c, spectrum = self.config, complex_spectrum(x)
        if mask is None:
            samples = torch.istft(spectrum, c.istft_n_fft, c.istft_hop, window=self.window)
        else:
            half = c.istft_n_fft // 2
            samples = overlap_add(spectrum, mask, self.window, c.istft_hop)[:, half:-half]
        return samples.clamp(-c.audio_limit, c.audio_limit)


def fold_weight_norm(hift: M) -> M:
    """Replace every weight-normed weight by its value, in place: the same function, computed once instead of per call.

    The state dict no longer has upstream's keys; load first.
    """
    for module in list(hift.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    return hift.requires_grad_(False)


class Snake(nn.Module):
    """x + sin^2(a x) / a with one a per channel."""

    EPSILON = 1e-9

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, T], multiplied by the mask first, to the same shape."""
        alpha, x = self.alpha[None, :, None], masked(x, mask)
        return x + torch.sin(x * alpha) ** 2 / (alpha + self.EPSILON)


MakeConv = Callable[[int, int, int], nn.Module]
"""Makes a convolution of so many channels, kernel and dilation."""


class ResBlock(nn.Module):
    """Dilated convolutions with snake activations, each added to its input."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], conv: MakeConv) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(conv(channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(conv(channels, kernel, 1) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def layers(self) -> zip[tuple[nn.Module, ...]]:
        """Return the convolutions and activations of every dilation."""
        return zip(self.convs1, self.convs2, self.activations1, self.activations2, strict=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, C, T] to the same shape; x must be 0 where `mask` is, and so is the result."""
        for conv1, conv2, snake1, snake2 in self.layers():
            x = add_masked(x, conv2(snake2(conv1(snake1(x)), mask)), mask)
        return x


def residual_blocks(config: HiFTConfig, conv: MakeConv) -> tuple[nn.ModuleList, nn.ModuleList]:
    """Return the source's block of every stage, and all blocks of all stages."""
    source = zip(config.source_resblock_kernel_sizes, config.source_resblock_dilation_sizes, strict=True)
    sizes = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
    channels = stage_channels(config)[1:]
    return (
        nn.ModuleList(ResBlock(width, *size, conv) for width, size in zip(channels, source, strict=True)),
        nn.ModuleList(ResBlock(width, *size, conv) for width in channels for size in sizes),
    )


def stage_channels(config: HiFTConfig) -> list[int]:
    """Return the channels before the first stage and after each."""
    return [config.base_channels // 2**stage for stage in range(len(config.upsample_rates) + 1)]


def complex_spectrum(spectra: Tensor) -> Tensor:
    """Return [B, n_fft / 2 + 1, F] complex of [B, n_fft + 2, F] log magnitudes, then phases before their sine."""
    magnitude, phase = spectra.chunk(2, 1)
    magnitude, phase = torch.exp(magnitude).clamp(max=MAX_MAGNITUDE), torch.sin(phase)
    return torch.complex(magnitude * torch.cos(phase), magnitude * torch.sin(phase))


def _same_conv(channels: int, kernel: int, dilation: int) -> nn.Module:
    conv = nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)
    weight_norm(conv)
    return conv


def source_strides(config: HiFTConfig) -> list[int]:
    """STFT frames per column of each stage: the product of the later stages' rates (15, 3, 1)."""
    rates = config.upsample_rates
    return [math.prod(rates[stage + 1 :]) for stage in range(len(rates))]


def _source_down(spectrum: int, channels: int, stride: int) -> nn.Module:
    if stride == 1:
        return nn.Conv1d(spectrum, channels, 1)
    return nn.Conv1d(spectrum, channels, 2 * stride, stride, padding=stride // 2)
