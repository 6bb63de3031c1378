"""Causal HiFT vocoder of CosyVoice3: mel to audio in pieces of any size that join without a fade.

All convolutions look back except the first of the pitch predictor (3 frames ahead) and of the decoder (4 ahead), so a
piece that holds back 4 frames and 4 samples equals the whole. State is passed in and out as two flat rows a stream.
The pitch is computed in float64, everything else in float32. It knows nothing of streams or batches of them.

Source: specification of the flows, section 8; differs in what is held back (the original: 7 frames and 480 samples).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from token2wav_service.models.causal import causal_tail
from token2wav_service.models.config import OVERLAPPING_COLUMNS, POST_KERNEL, HiFTConfig
from token2wav_service.models.vocoder.hift import (
    F0_LAYERS,
    FINAL_LEAKY_SLOPE,
    ResBlock,
    complex_spectrum,
    residual_blocks,
    source_strides,
    stage_channels,
)
from token2wav_service.models.vocoder.source import HarmonicSource, overlap_add

F0_LOOKAHEAD = 3
"""Mel frames that the pitch predictor sees ahead."""
F0_KERNEL = 3


Spectra = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Computes what `CausalHiFT.spectra` does."""


@dataclass(frozen=True)
class CausalState:
    """What earlier pieces left of each row; zeros before the first."""

    floats: Tensor
    """[B, num_floats] float32: left contexts of the convolutions and spectra, and the newest source samples."""
    doubles: Tensor
    """[B, num_doubles] float64: left contexts of the pitch predictor, and each harmonic's cycles so far."""
    is_first: Tensor
    """[B] bool, true before a row's first piece."""


class CausalHiFT(nn.Module):
    """The upstream CausalHiFTGenerator, with its parameter names."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        channels, spectrum = stage_channels(config), config.istft_n_fft + 2
        self.lookahead = config.conv_pre_look_right
        """Mel frames that a piece needs beyond those it decodes."""
        self.m_source = HarmonicSource(config)
        self.f0_predictor = CausalF0Predictor(config.in_channels, config.f0_cond_channels).double()
        self.conv_pre = _conv(config.in_channels, channels[0], self.lookahead + 1)
        self.ups = nn.ModuleList(
            _conv(channels[i], channels[i + 1], kernel) for i, kernel in enumerate(config.upsample_kernel_sizes)
        )
        self.source_downs = nn.ModuleList(
            nn.Conv1d(spectrum, channels[i + 1], 2 * stride if stride > 1 else 1, stride)
            for i, stride in enumerate(source_strides(config))
        )
        self.source_resblocks, self.resblocks = residual_blocks(
            config, lambda width, kernel, dilation: _conv(width, width, kernel, dilation)
        )
        self.conv_post = _conv(channels[-1], spectrum, POST_KERNEL)
        self.register_buffer("window", torch.hann_window(config.istft_n_fft, periodic=True), persistent=False)
        self.window: Tensor
        self.num_floats = config.istft_n_fft // 2 + config.causal_context
        self.num_doubles = self.f0_predictor.num_doubles + self.m_source.harmonics

    @property
    def held_samples(self) -> int:
        """Samples at a piece's end that the next one completes (4 for the official sizes)."""
        return self.config.istft_n_fft // 2 - self.config.istft_hop

    def initial_state(self, rows: int) -> CausalState:
        """Return the state of rows that have not begun."""
        device = self.window.device
        return CausalState(
            torch.zeros(rows, self.num_floats, device=device),
            torch.zeros(rows, self.num_doubles, device=device, dtype=torch.float64),
            torch.ones(rows, device=device, dtype=torch.bool),
        )

    def forward(
        self,
        mel: Tensor,
        frames: Tensor,
        is_last: Tensor,
        state: CausalState,
        noise: Tensor,
        spectra: Spectra | None = None,
        *,
        is_reference: bool = False,
    ) -> tuple[Tensor, CausalState]:
        """Vocode a piece of every row.

        Args:
            mel: [B, 80, T + look-ahead] float32, zeros behind a row's last frame; the look-ahead frames come again.
            frames: [B] int64 frames to decode per row, at least 1, at most T.
            is_last: [B] bool; a last row has no look-ahead.
            state: what the rows' earlier pieces left.
            noise: [B, 480 (T + 1), H] uniform in 0..1, from the piece's first sample.
            spectra: computes what the method of that name does; None takes the method.
            is_reference: sum the harmonics' phases as upstream does.

        Returns:
            [B, 480 T + 4] samples, see `decode`, and the new state.
        """
        _, source, doubles = self.excite(mel, frames, state, noise, is_reference)
        samples, floats = self.decode(mel, source, frames, is_last, state, spectra)
        return samples, CausalState(floats, doubles, torch.zeros_like(state.is_first))

    def excite(
        self, mel: Tensor, frames: Tensor, state: CausalState, noise: Tensor, is_reference: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return f0 [B, T + 1] in Hz, the source [B, 480 (T + 1)] and the new `doubles`; arguments as in `forward`."""
        contexts = self.f0_predictor.num_doubles
        f0, tails = self.f0_predictor(mel.double(), frames, state.doubles[:, :contexts])
        f0 = f0.float()
        carried = state.doubles[:, contexts:]
        angles, cycles = self._angles(f0, carried, is_reference)
        angles = angles.repeat_interleave(self.config.frame_samples, dim=2)
        source = self.m_source(f0, noise, angles)[:, 0]
        carried = cycles.gather(2, frames[:, None, None].expand(-1, cycles.shape[1], 1))[:, :, 0]
        return f0, source, torch.cat([tails, carried], 1)

    def decode(
        self,
        mel: Tensor,
        source: Tensor,
        frames: Tensor,
        is_last: Tensor,
        state: CausalState,
        spectra: Spectra | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Decode mel with a given source.

        Args:
            mel, frames, is_last, state, spectra: as in `forward`.
            source: [B, at least 480 (T + 1), or 480 T where all rows are last] from the piece's first sample.

        Returns:
            [B, 480 T + 4] samples within +-audio_limit, and the new `floats`. Column j is sample j - 4 of the piece:
            the first 4 belong to the previous piece's end (without meaning in a first piece), and row b ends at
            column 480 frames_b, or 4 later when it is last.
        """
        size, width = mel.shape[2] - self.lookahead, self.config.istft_n_fft // 2
        held, context = state.floats[:, :width], state.floats[:, width:]
        padded, new_held = self._padded_source(source, frames, is_last, state.is_first, held, size)
        compute = spectra or self.spectra
        made, new_context = compute(mel, self._spectrum(padded), frames, state.is_first, context)
        return self._samples(made, frames, state.is_first), torch.cat([new_held, new_context], 1)

    def spectra(
        self, mel: Tensor, spectrum: Tensor, frames: Tensor, is_first: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the convolutions: everything between the source's STFT and the inverse STFT.

        Args:
            mel, frames: as in `forward`.
            spectrum: [B, n_fft + 2, 120 T + 1] real parts, then imaginary ones, of the padded source's STFT.
            is_first: [B] bool, true in a row's first piece.
            context: [B, causal_context] left contexts of the convolutions and spectra.

        Returns:
            [B, n_fft + 2, 3 + 120 T + 1] log magnitudes, then phases before their sine, from the 3 columns that reach
            into the piece on; and the new context.
        """
        run, at = _Run(context), self._at(frames)
        spectrum = run.context(spectrum, at, source_strides(self.config)[0] - 1)
        columns = self._columns(self.conv_pre(mel), spectrum, frames, is_first, run)
        spectra = run.conv(self.conv_post, functional.leaky_relu(columns, FINAL_LEAKY_SLOPE), at)
        return run.context(spectra, at, OVERLAPPING_COLUMNS), run.floats()

    def _at(self, frames: Tensor, stage: int | None = None) -> Tensor:
        """Return columns per row after a stage; None is after the last."""
        rates = self.config.upsample_rates
        return frames * math.prod(rates if stage is None else rates[: stage + 1])

    def _angles(self, f0: Tensor, carried: Tensor, is_reference: bool) -> tuple[Tensor, Tensor]:
        """Return [B, H, T] float32 radians of every frame, and [B, H, T + 1] float64 cycles / 480 before each."""
        numbers = torch.arange(1, self.m_source.harmonics + 1, device=f0.device, dtype=f0.dtype)
        steps = (f0[:, None, :] * numbers[:, None] / self.config.sampling_rate) % 1
        samples = self.config.frame_samples
        # Upstream sums in float32 and lets the sum grow; float64 of the fraction keeps long streams in tune.
        dtype = torch.float32 if is_reference else torch.float64
        cycles = torch.cumsum(torch.cat([carried.to(dtype)[:, :, None], steps.to(dtype)], 2), 2)
        if is_reference:
            return cycles[:, :, 1:] * 2 * math.pi * samples, cycles.double()
        return ((cycles[:, :, 1:] * samples % 1) * 2 * math.pi).float(), cycles % 1

    def _padded_source(
        self, source: Tensor, frames: Tensor, is_last: Tensor, is_first: Tensor, held: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """Return [B, 8 + 480 T + 8], the piece between the samples before it and those behind it, and [B, 8] to hold.

        At a stream's two ends the source is reflected.
        """
        width, samples = self.config.istft_n_fft // 2, self.config.frame_samples
        before = torch.where(is_first[:, None], source[:, 1 : width + 1].flip(1), held)
        source = functional.pad(source, (0, max(0, samples * size + width - source.shape[1])))
        ends = (frames * samples)[:, None]
        newest = source.gather(1, ends - width + torch.arange(width, device=source.device))
        index = torch.arange(samples * size + width, device=source.device).expand(source.shape[0], -1)
        reflected = torch.where(is_last[:, None] & (index >= ends), 2 * (ends - 1) - index, index)
        return torch.cat([before, source.gather(1, reflected.clamp(min=0))], 1), newest

    def _spectrum(self, samples: Tensor) -> Tensor:
        """Return [B, n_fft + 2, 120 T + 1]: real parts, then imaginary ones."""
        c = self.config
        spectrum = torch.stft(
            samples, c.istft_n_fft, c.istft_hop, window=self.window, center=False, return_complex=True
        )
        return torch.cat([spectrum.real, spectrum.imag], 1)

    def _columns(self, x: Tensor, spectrum: Tensor, frames: Tensor, is_first: Tensor, run: _Run) -> Tensor:
        """Run the stages: [B, C, T] to [B, C', 120 T + 1], the first column being the last piece's last."""
        c = self.config
        last = len(self.ups) - 1
        per_stage = len(c.resblock_kernel_sizes)
        for stage, (up, rate) in enumerate(zip(self.ups, c.upsample_rates, strict=True)):
            at = self._at(frames, stage)
            x = functional.leaky_relu(x, c.lrelu_slope).repeat_interleave(rate, dim=2)
            x = run.conv(up, x, at)
            if stage == last:
                x = _with_held_column(x, at, is_first, run)
            excitation = self._excitation(stage, spectrum)
            x = x + run.resblock(cast(ResBlock, self.source_resblocks[stage]), excitation, at)
            blocks = cast(Sequence[ResBlock], self.resblocks[stage * per_stage : (stage + 1) * per_stage])
            x = torch.stack([run.resblock(block, x, at) for block in blocks]).mean(0)
        return x

    def _excitation(self, stage: int, spectrum: Tensor) -> Tensor:
        """Down-sample the source's spectrum to a stage's rate."""
        strides = source_strides(self.config)
        unused = strides[0] - strides[stage]
        return torch.as_tensor(self.source_downs[stage](spectrum[:, :, unused:]))

    def _samples(self, spectra: Tensor, frames: Tensor, is_first: Tensor) -> Tensor:
        """Inverse STFT of [B, n_fft + 2, 3 + 120 T + 1] columns of which those outside a stream do not exist."""
        c = self.config
        column = torch.arange(spectra.shape[2], device=spectra.device)
        ends = self._at(frames)[:, None] + OVERLAPPING_COLUMNS
        exists = (column <= ends) & ((column >= OVERLAPPING_COLUMNS) | ~is_first[:, None])
        mask = exists[:, None].to(spectra.dtype)
        samples = overlap_add(complex_spectrum(spectra), mask, self.window, c.istft_hop)
        start = OVERLAPPING_COLUMNS * c.istft_hop + c.istft_n_fft // 2 - self.held_samples
        count = (spectra.shape[2] - OVERLAPPING_COLUMNS - 1) * c.istft_hop + self.held_samples
        return samples[:, start : start + count].clamp(-c.audio_limit, c.audio_limit)


class _Run:
    """One piece's way through the state: layers take their left contexts in the order in which they run."""

    def __init__(self, floats: Tensor) -> None:
        self._floats = floats
        self._cursor = 0
        self._new: list[Tensor] = []

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Return the next part of the state, [B, *shape]."""
        size = math.prod(shape)
        part = self._floats[:, self._cursor : self._cursor + size]
        self._cursor += size
        return part.view(-1, *shape)

    def put(self, value: Tensor) -> None:
        """Set the part that was taken last."""
        self._new.append(value.flatten(1))

    def floats(self) -> Tensor:
        """Return the new state."""
        return torch.cat(self._new, 1)

    def context(self, x: Tensor, at: Tensor, width: int) -> Tensor:
        """Put `width` columns of left context before [B, C, T]; the next piece's end at column `at` [B]."""
        columns = torch.cat([self.take((x.shape[1], width)), x], 2)
        self.put(causal_tail(columns, at, width))
        return columns

    def conv(self, conv: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        """Run a causal convolution on [B, C, T]."""
        return torch.as_tensor(conv(self.context(x, at, _left_context(conv))))

    def resblock(self, block: ResBlock, x: Tensor, at: Tensor) -> Tensor:
        """Run a residual block on [B, C, T]."""
        for conv1, conv2, snake1, snake2 in block.layers():
            x = x + self.conv(conv2, snake2(self.conv(conv1, snake1(x), at)), at)
        return x


class CausalF0Predictor(nn.Module):
    """Pitch from mel, in float64: one convolution that looks ahead, four that look back, a linear layer."""

    def __init__(self, in_channels: int, cond_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(in_channels, cond_channels, F0_LOOKAHEAD + 1), nn.ELU()]
        for _ in range(F0_LAYERS - 1):
            layers += [_conv(cond_channels, cond_channels, F0_KERNEL), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(cond_channels, 1)
        self.num_doubles = (F0_LAYERS - 1) * cond_channels * (F0_KERNEL - 1)

    def forward(self, mel: Tensor, frames: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
        """Map mel to pitch.

        Args:
            mel: [B, 80, T + 3] float64.
            frames: [B] frames per row after which the left contexts are taken.
            tails: [B, num_doubles] left contexts.

        Returns:
            [B, T] Hz, 0 or more, and the new left contexts.
        """
        run = _Run(tails)
        layers = list(self.condnet)
        x = layers[1](layers[0](mel))
        for conv, activation in zip(layers[2::2], layers[3::2], strict=True):
            x = activation(run.conv(conv, x, frames))
        return torch.abs(self.classifier(x.transpose(1, 2)).squeeze(-1)), run.floats()


def _conv(channels: int, out_channels: int, kernel: int, dilation: int = 1) -> nn.Module:
    """A weight-normed convolution without padding."""
    conv = nn.Conv1d(channels, out_channels, kernel, dilation=dilation)
    weight_norm(conv)
    return conv


def _left_context(conv: nn.Module) -> int:
    assert isinstance(conv, nn.Conv1d)
    return (conv.kernel_size[0] - 1) * conv.dilation[0]


def _with_held_column(x: Tensor, at: Tensor, is_first: Tensor, run: _Run) -> Tensor:
    """Put the previous piece's last column before [B, C, T]; a stream's first is reflected."""
    held = run.take((x.shape[1], 1))
    run.put(x.gather(2, (at - 1)[:, None, None].expand(-1, x.shape[1], 1)))
    return torch.cat([torch.where(is_first[:, None, None], x[:, :, 1:2], held), x], 2)
