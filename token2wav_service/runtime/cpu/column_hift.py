"""The HiFT vocoder for CPU cores: its convolutions run with the channels of a column side by side in memory.

The CPU's convolutions of few channels over many columns take half of the time in that layout. Same weights, same
operations; only `spectra` is its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.vocoder.hift import FINAL_LEAKY_SLOPE, HiFT, Snake
from token2wav_service.models.vocoder.source import cleared


class ColumnHiFT(HiFT):
    """A HiFT whose `spectra` computes on [B, C, 1, T] with C innermost."""

    def __init__(self, hift: HiFT) -> None:
        """Take over a vocoder whose weight norms are folded; its modules are shared."""
        nn.Module.__init__(self)
        self.__dict__.update(hift.__dict__)
        convolutions = [layer for layer in hift.modules() if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d))]
        self._kernels = {id(layer): _columns(layer.weight.detach()) for layer in convolutions}

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `HiFT.spectra`."""
        masks = [None if mask is None else mask[:, :, None] for mask in self._masks(lengths, mel)]
        spectrum = _columns(spectrum)
        x = _masked(self._convolved(self.conv_pre, cleared(_columns(mel), masks[0])), masks[0])
        per_stage = len(self.config.resblock_kernel_sizes)
        for stage, (up, mask) in enumerate(zip(self.ups, masks[1:], strict=True)):
            x = self._raised(up, functional.leaky_relu(x, self.config.lrelu_slope))
            if stage == len(self.ups) - 1:
                x = torch.cat([x[..., 1:2], x], 3)
            excitation = _masked(self._convolved(self.source_downs[stage], spectrum), mask)
            x = _masked(x + self._block(self.source_resblocks[stage], excitation, mask), mask)
            blocks = list(self.resblocks[stage * per_stage : (stage + 1) * per_stage])
            total = self._block(blocks[0], x, mask)
            for block in blocks[1:]:
                total = total.add_(self._block(block, x, mask))
            x = total.div_(len(blocks))
        return self._convolved(self.conv_post, functional.leaky_relu(x, FINAL_LEAKY_SLOPE))[:, :, 0]

    def _block(self, block: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        """See `ResBlock.forward`."""
        layers = zip(block.convs1, block.convs2, block.activations1, block.activations2, strict=True)
        for conv1, conv2, snake1, snake2 in layers:
            inner = _masked(self._convolved(conv1, _snaked(snake1, x)), mask)
            x = x + _masked(self._convolved(conv2, _snaked(snake2, inner)), mask)
        return x

    def _convolved(self, conv: Any, x: Tensor) -> Tensor:
        kernel, (stride,), (padding,), (dilation,) = self._kernels[id(conv)], conv.stride, conv.padding, conv.dilation
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            # NOTE: conv2d gives small inputs to slower kernels.
            made: Tensor = torch.mkldnn_convolution(x, kernel, conv.bias, (0, padding), (1, stride), (1, dilation), 1)
            return made
        return functional.conv2d(x, kernel, conv.bias, (1, stride), (0, padding), (1, dilation))

    def _raised(self, conv: Any, x: Tensor) -> Tensor:
        kernel, (stride,), (padding,) = self._kernels[id(conv)], conv.stride, conv.padding
        return functional.conv_transpose2d(x, kernel, conv.bias, (1, stride), (0, padding))


def _columns(x: Tensor) -> Tensor:
    """Return [A, B, T] as [A, B, 1, T] with B innermost."""
    return x[:, :, None].contiguous(memory_format=torch.channels_last)


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.mul_(mask)


def _snaked(snake: Snake, x: Tensor) -> Tensor:
    """See `Snake.forward`."""
    alpha = snake.alpha[None, :, None, None]
    wave = (x * alpha).sin_()
    return torch.addcdiv(x, wave.mul_(wave), alpha + Snake.EPSILON)
