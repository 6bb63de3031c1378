"""What the vocoder's audio is compared by: the flow's own mel, and spectra of several resolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.features.mel import FLOW_HOP_SAMPLES, FLOW_WINDOW_SAMPLES, flow_mel_filters

_RESOLUTIONS = ((512, 128), (1024, 256), (2048, 512))
"""FFT and hop, in samples at 24 kHz."""
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


def _magnitude(samples: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(samples, size, hop, window=window, return_complex=True)
    return torch.sqrt(spectrum.real**2 + spectrum.imag**2 + _MAGNITUDE_EPSILON).clamp(min=_MAGNITUDE_FLOOR)
