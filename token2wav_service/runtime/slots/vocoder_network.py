"""HiFT's convolutions on fused kernels: channels last, activations in the epilogues, parallel blocks in one launch.

What `models/vocoder/hift.py` computes; products in a given dtype, sums in float32. It knows nothing of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.vocoder.hift import FINAL_LEAKY_SLOPE, MAX_MAGNITUDE, HiFT
from token2wav_service.runtime.kernels import vocoder_kernels as kernels
from token2wav_service.runtime.kernels import vocoder_ops as ops
from token2wav_service.runtime.kernels.vocoder_ops import Activation, Convolution, Ends


class VocoderNetwork:
    """Holds packed weights, no stream."""

    def __init__(self, hift: HiFT, dtype: torch.dtype) -> None:
        """Pack the weights.

        Args:
            hift: float32, on its device, weight norms folded.
            dtype: of the products. Float16 keeps as many digits as TF32, which float32 convolutions are made of.
        """
        self.config, self.dtype = hift.config, dtype
        c = hift.config
        self.spectrum = ops.Spectrum(hift.window, c.istft_hop, c.frame_samples)
        self.pitch = [
            pack_convolution(conv, dtype) for conv in hift.f0_predictor.condnet if isinstance(conv, nn.Conv1d)
        ]
        self.classifier: Any = hift.f0_predictor.classifier
        self.first, self.final = pack_convolution(hift.conv_pre, dtype), pack_convolution(hift.conv_post, dtype)
        width = len(c.resblock_kernel_sizes)
        self.stages = [
            _Stage(up, down, source, list(hift.resblocks[i * width : (i + 1) * width]), dtype)
            for i, (up, down, source) in enumerate(zip(hift.ups, hift.source_downs, hift.source_resblocks, strict=True))
        ]

    def predict_pitch(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """Map mel [B, T, 80] to pitch [B, T] float32: Hz, but for the sign, which means nothing."""
        ends, elu = Ends(lengths, 1), Activation(kernels.ELU.value)
        x: Tensor | None = mel
        for index, conv in enumerate(self.pitch):
            assert x is not None
            dtype = torch.float32 if index == len(self.pitch) - 1 else self.dtype
            _, x = ops.convolve(x, conv, ends, mel.shape[1], activation=elu, keeps_plain=False, dtype=dtype)
        assert x is not None
        return functional.linear(x, self.classifier.weight, self.classifier.bias)[:, :, 0]

    def decode(self, mel: Tensor, source: Tensor, lengths: Tensor, fades: ops.Fades | None = None) -> Tensor:
        """Decode mel with a given source.

        Args:
            mel: [B, T, 80] in the dtype of the products, 0 beyond a row's end.
            source: [B, 480 T] float32.
            lengths: [B] int64 valid frames.
            fades: how to join the previous chunk's samples.

        Returns:
            [B, 480 T] float32 samples, 0 beyond a row's end.
        """
        c = self.config
        spectra = self.spectra(mel, self.spectrum.analyse(source, lengths, self.dtype), lengths)
        return self.spectrum.synthesise(spectra, lengths, (c.audio_limit, MAX_MAGNITUDE), fades)

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor) -> Tensor:
        """Run everything between the source's spectrum and the samples'.

        Args:
            mel: [B, T, 80].
            spectrum: [B, 120 T + 1, 32].
            lengths: [B] mel frames.

        Returns:
            [B, 120 T + 1, 18] float32 log magnitudes, then phases before their sine.
        """
        c = self.config
        leaky = Activation(kernels.LEAKY.value, slope=c.lrelu_slope)
        _, x = ops.convolve(mel, self.first, Ends(lengths, 1), mel.shape[1], activation=leaky, keeps_plain=False)
        scale, last = 1, len(self.stages) - 1
        for index, (stage, rate) in enumerate(zip(self.stages, c.upsample_rates, strict=True)):
            assert x is not None
            is_last = index == last
            ends = Ends(lengths, scale * rate, int(is_last))
            x = stage.run(x, spectrum, Ends(lengths, scale), ends, FINAL_LEAKY_SLOPE if is_last else c.lrelu_slope)
            scale *= rate
        assert x is not None
        out, _ = ops.convolve(x, self.final, Ends(lengths, scale, 1), x.shape[1], dtype=torch.float32)
        assert out is not None
        return out


class _Stage:
    """One upsampling, its source branch and its residual blocks."""

    def __init__(self, up: Any, down: Any, source: Any, blocks: Sequence[Any], dtype: torch.dtype) -> None:
        self.rate = up.stride[0]
        self.up, self.down = _pack_transposed(up, dtype), pack_convolution(down, dtype, ops.SPECTRUM_CHANNELS)
        self.source = _Blocks([source], dtype)
        # The longest kernel first: its blocks take the most time.
        ordered = sorted(blocks, key=lambda block: -block.convs1[0].kernel_size[0])
        dilations = {tuple(conv.dilation[0] for conv in block.convs1) for block in ordered}
        can_share = len(dilations) == 1 and len(ordered) <= ops.MAX_BRANCHES
        self.groups = [_Blocks(ordered, dtype)] if can_share else [_Blocks([block], dtype) for block in ordered]
        self.alphas = torch.cat([group.first_alpha for group in self.groups])

    def run(self, x: Tensor, spectrum: Tensor, before: Ends, ends: Ends, slope: float) -> Tensor:
        """Map [B, N, C] to [B, rate N (+ 1 at the last stage), C / 2], activated for what follows."""
        upsampled, _ = ops.convolve(x, self.up, before, x.shape[1])
        assert upsampled is not None
        columns = x.shape[1] * self.rate + ends.extra
        upsampled = upsampled.view(x.shape[0], x.shape[1] * self.rate, -1)
        excitation, activated = ops.convolve(spectrum, self.down, ends, columns, activation=self.source.first_snake)
        assert excitation is not None and activated is not None
        excitation = self.source.run(excitation, activated, ends)
        mixed, snakes = ops.fan_out(upsampled, excitation, self.alphas, ends, bool(ends.extra))
        made = []
        for group in self.groups:
            own, snakes = snakes[: group.branches], snakes[group.branches :]
            made.append(group.run(mixed, own if group.branches > 1 else own[0], ends))
        stacked = made[0] if made[0].dim() > mixed.dim() else torch.stack(made)
        return ops.mean_leaky(stacked, slope)


class _Blocks:
    """Residual blocks of equal dilations that run side by side."""

    def __init__(self, blocks: Sequence[Any], dtype: torch.dtype) -> None:
        self.branches = len(blocks)
        self.first_alpha = _alphas(blocks, "activations1", 0)
        self.first_snake = Activation(kernels.SNAKE.value, self.first_alpha)
        self.pairs = []
        count = len(blocks[0].convs1)
        for index in range(count):
            inner = _pack_many([block.convs1[index] for block in blocks], dtype)
            outer = _pack_many([block.convs2[index] for block in blocks], dtype)
            middle = Activation(kernels.SNAKE.value, _alphas(blocks, "activations2", index))
            following = None
            if index + 1 < count:
                following = Activation(kernels.SNAKE.value, _alphas(blocks, "activations1", index + 1))
            self.pairs.append((inner, middle, outer, following))

    def run(self, x: Tensor, activated: Tensor | None, ends: Ends) -> Tensor:
        """Run all blocks.

        Args:
            x: [B, N, C].
            activated: x after the blocks' first snakes, [branches, B, N, C] (without that axis for one block).
            ends: of the rows.

        Returns:
            As `activated`.
        """
        columns = x.shape[-2]
        for inner, middle, outer, following in self.pairs:
            assert activated is not None
            _, y = ops.convolve(activated, inner, ends, columns, activation=middle, keeps_plain=False)
            assert y is not None
            added, activated = ops.convolve(y, outer, ends, columns, residual=x, activation=following)
            assert added is not None
            x = added
        return x


def _alphas(blocks: Sequence[Any], name: str, index: int) -> Tensor:
    return torch.stack([getattr(block, name)[index].alpha.detach().float() for block in blocks])


def pack_convolution(conv: Any, dtype: torch.dtype, inner: int | None = None) -> Convolution:
    """Pack a convolution [C_out, C_in, taps]; its input channels are padded to `inner` with zeros."""
    weight = conv.weight.detach().permute(2, 1, 0)
    if inner is not None:
        weight = functional.pad(weight, (0, 0, 0, inner - weight.shape[1]))
    return Convolution(
        weight.to(dtype).contiguous(), conv.bias.detach().float()[None].contiguous(), (weight.shape[0],),
        conv.dilation[0], conv.stride[0], conv.padding[0],
    )  # fmt: skip


def _pack_many(convs: Sequence[Any], dtype: torch.dtype) -> Convolution:
    """Pack "same" convolutions of one dilation side by side."""
    packed = [pack_convolution(conv, dtype) for conv in convs]
    return Convolution(
        torch.cat([p.weight for p in packed]), torch.cat([p.bias for p in packed]), tuple(p.taps[0] for p in packed),
        convs[0].dilation[0],
    )  # fmt: skip


def _pack_transposed(conv: Any, dtype: torch.dtype) -> Convolution:
    """Pack a transposed convolution as a plain one that makes `stride` columns at once, side by side in channels."""
    weight = conv.weight.detach()
    channels_in, channels_out, kernel = weight.shape
    stride, padding = conv.stride[0], conv.padding[0]
    oldest = -((kernel - 1 - padding) // stride)
    newest = (stride - 1 + padding) // stride
    packed = weight.new_zeros(newest - oldest + 1, channels_in, stride, channels_out)
    for phase in range(stride):
        for offset in range(oldest, newest + 1):
            tap = phase + padding - stride * offset
            if 0 <= tap < kernel:
                packed[offset - oldest, :, phase] = weight[:, :, tap]
    bias = conv.bias.detach().float().repeat(stride)[None].contiguous()
    return Convolution(packed.flatten(2).to(dtype).contiguous(), bias, (packed.shape[0],), pad=-oldest)
