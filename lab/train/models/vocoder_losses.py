"""What the vocoder's audio is compared by: the flow's own mel, spectra of several resolutions, and discriminators.

The discriminators look at folds of the waveform by several periods, and at spectrograms of several resolutions. They
are nine tenths of the arithmetic, so on a GPU their products are in bfloat16, channels last. Source: HiFi-GAN (Kong et
al., arXiv 2010.05646) for the periods, UnivNet (Jang et al., arXiv 2106.07889) for the spectra; fewer channels, as the
generator is small too.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from lab.train.sizes import DiscriminatorSizes
from lab.train.trainer import autocast
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.mel import FLOW_HOP_SAMPLES, FLOW_WINDOW_SAMPLES, flow_mel_filters

_RESOLUTIONS = ((512, 128), (1024, 256), (2048, 512))
"""FFT and hop, in samples at 24 kHz."""
_PHASE_RESOLUTIONS = ((512, 120), (1024, 240))
"""The same for phases; hops divide the mel's."""
_PHASE_BELOW_HZ = 3000.0
_PHASE_EPSILON = 1e-4
_MAGNITUDE_FLOOR = 1e-5
_MAGNITUDE_EPSILON = 1e-9


class MelLoss(nn.Module):
    """Mean absolute difference of `flow_mel_24k`, computed in torch with its own filters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.from_numpy(flow_mel_filters().copy()), persistent=False)
        self.register_buffer("window", torch.hann_window(FLOW_WINDOW_SAMPLES, periodic=True), persistent=False)
        self.filters: Tensor
        self.window: Tensor

    def mel(self, samples: Tensor) -> Tensor:
        """Map [B, N] to [B, 80, N // 480]."""
        edge = (FLOW_WINDOW_SAMPLES - FLOW_HOP_SAMPLES) // 2
        padded = functional.pad(samples[:, None], (edge, edge), mode="reflect")[:, 0]
        spectrum = torch.stft(
            padded, FLOW_WINDOW_SAMPLES, FLOW_HOP_SAMPLES, window=self.window, center=False, return_complex=True
        )
        magnitude = torch.sqrt(spectrum.real**2 + spectrum.imag**2 + _MAGNITUDE_EPSILON)
        return torch.log((self.filters @ magnitude).clamp(min=_MAGNITUDE_FLOOR))

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        """Compare samples [B, N]."""
        return functional.l1_loss(self.mel(made), self.mel(true))


class SpectralLoss(nn.Module):
    """Spectral convergence and log magnitude at several resolutions.

    Source: Parallel WaveGAN (Yamamoto et al., arXiv 1910.11480).
    """

    def __init__(self) -> None:
        super().__init__()
        for size, _ in _RESOLUTIONS:
            self.register_buffer(f"window_{size}", torch.hann_window(size, periodic=True), persistent=False)

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        """Compare samples [B, N]."""
        losses = []
        for size, hop in _RESOLUTIONS:
            window = self.get_buffer(f"window_{size}")
            a, b = (_magnitude(samples, size, hop, window) for samples in (made, true))
            losses.append(torch.norm(a - b) / torch.norm(b) + functional.l1_loss(a.log(), b.log()))
        return torch.stack(losses).mean()


class PhaseLoss(nn.Module):
    """How far phases are off where the speech is voiced and low: 1 - cosine, weighted by the true magnitude."""

    def __init__(self) -> None:
        super().__init__()
        for size, _ in _PHASE_RESOLUTIONS:
            self.register_buffer(f"window_{size}", torch.hann_window(size, periodic=True), persistent=False)

    def forward(self, made: Tensor, true: Tensor, is_voiced: Tensor) -> Tensor:
        """Compare samples [B, N] in frames of which [B, N / 480] are voiced."""
        losses = []
        for size, hop in _PHASE_RESOLUTIONS:
            bins = round(_PHASE_BELOW_HZ * size / SAMPLE_RATE_HZ)
            window = self.get_buffer(f"window_{size}")
            a, b = (
                torch.stft(samples, size, hop, window=window, return_complex=True)[:, :bins] for samples in (made, true)
            )
            inside = is_voiced.float().repeat_interleave(FLOW_HOP_SAMPLES // hop, 1)
            # A column stands between two steps; both must be voiced.
            inside = functional.pad(inside, (1, 0)) * functional.pad(inside, (0, 1))
            magnitude = b.abs() + _MAGNITUDE_FLOOR
            cosine = (a.real * b.real + a.imag * b.imag) / ((a.abs() + _PHASE_EPSILON) * (magnitude + _PHASE_EPSILON))
            weight = magnitude * inside[:, None]
            losses.append((weight * (1 - cosine)).sum() / (weight.sum() + _MAGNITUDE_FLOOR))
        return torch.stack(losses).mean()


def _magnitude(samples: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(samples, size, hop, window=window, return_complex=True)
    return torch.sqrt(spectrum.real**2 + spectrum.imag**2 + _MAGNITUDE_EPSILON).clamp(min=_MAGNITUDE_FLOOR)


_PERIODS = (2, 3, 5, 7, 11)
_SLOPE = 0.1

Judged = tuple[Tensor, list[Tensor]]
"""A score per place, and every layer's features."""


class Discriminators(nn.Module):
    """All of them."""

    def __init__(self, sizes: DiscriminatorSizes) -> None:
        super().__init__()
        self.periods = nn.ModuleList(_PeriodJudge(period, sizes.period_channels) for period in _PERIODS)
        self.spectra = nn.ModuleList(_SpectrumJudge(*pair, sizes.spectrum_channels) for pair in _RESOLUTIONS)

    def forward(self, samples: Tensor) -> list[Judged]:
        """Judge samples [B, N]; scores are float32, features in the products' type."""
        return [judge(samples) for judge in (*self.periods, *self.spectra)]


class _PeriodJudge(nn.Module):
    def __init__(self, period: int, channels: int) -> None:
        super().__init__()
        self.period = period
        widths = (1, channels, 2 * channels, 4 * channels, 4 * channels)
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in pairs)
        self.score = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, samples: Tensor) -> Judged:
        short = -samples.shape[1] % self.period
        x = functional.pad(samples[:, None], (0, short), mode="reflect")
        return _through(self.layers, self.score, x.view(*x.shape[:2], -1, self.period))


class _SpectrumJudge(nn.Module):
    def __init__(self, size: int, hop: int, channels: int) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size, periodic=True), persistent=False)
        self.window: Tensor
        shapes = ((1, (3, 9), (1, 1)), *[(channels, (3, 9), (1, 2))] * 3, (channels, (3, 3), (1, 1)))
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(inputs, channels, kernel, stride, (kernel[0] // 2, kernel[1] // 2)))
            for inputs, kernel, stride in shapes
        )
        self.score = weight_norm(nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, samples: Tensor) -> Judged:
        spectrum = torch.stft(samples, self.size, self.hop, window=self.window, return_complex=True)
        magnitude = torch.sqrt(spectrum.real**2 + spectrum.imag**2 + _MAGNITUDE_EPSILON)
        return _through(self.layers, self.score, magnitude.transpose(1, 2)[:, None])


def _through(layers: nn.ModuleList, score: nn.Module, x: Tensor) -> Judged:
    features = []
    x = x.contiguous(memory_format=torch.channels_last)
    with autocast(x.device):
        for layer in layers:
            x = functional.leaky_relu(layer(x), _SLOPE)
            features.append(x)
        return score(x).float(), features


def discriminator_loss(true: list[Judged], made: list[Judged]) -> Tensor:
    """Least squares: 1 for true audio, 0 for made."""
    return sum_of([((t[0] - 1) ** 2).mean() + (m[0] ** 2).mean() for t, m in zip(true, made, strict=True)])


def adversarial_loss(made: list[Judged]) -> Tensor:
    """Least squares: what is made should be taken for true."""
    return sum_of([((m[0] - 1) ** 2).mean() for m in made])


def feature_loss(true: list[Judged], made: list[Judged]) -> Tensor:
    """Mean absolute difference of the judges' features, relative to the true ones' size."""
    pairs = [
        (a.detach().float(), b.float())
        for t, m in zip(true, made, strict=True)
        for a, b in zip(t[1], m[1], strict=True)
    ]
    return sum_of([(b - a).abs().mean() / a.abs().mean() for a, b in pairs])


def sum_of(values: list[Tensor]) -> Tensor:
    """Add up."""
    return torch.stack(values).sum()
