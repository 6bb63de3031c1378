"""What the vocoder's convolution kernel computes, by PyTorch: its reference, and quicker than Triton's interpreter."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.models.vocoder.hift import Snake
from token2wav_service.runtime.kernels import vocoder_kernels as kernels
from token2wav_service.runtime.kernels.vocoder_ops import SAME_PAD, Activation, Convolution, Ends


def activate(activation: Activation, value: Tensor) -> Tensor:
    """Return what the kernels make of [branches, B, N, C] float32."""
    if activation.alpha is not None:
        alpha = activation.alpha[:, None, None]
        return value + torch.sin(value * alpha) ** 2 / (alpha + Snake.EPSILON)
    if activation.kind == kernels.LEAKY.value:
        return functional.leaky_relu(value, activation.slope)
    return functional.elu(value)


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
) -> tuple[Tensor | None, Tensor | None]:
    """See `vocoder_ops.convolve`."""
    c, made = convolution, []
    for branch, weight in enumerate(torch.split(c.weight, list(c.taps))):
        own = x if x.dim() == 3 else x[branch]
        before = (weight.shape[0] - 1) * c.dilation // 2 if c.pad == SAME_PAD else c.pad
        needed = (columns - 1) * c.stride + (weight.shape[0] - 1) * c.dilation + 1
        padded = functional.pad(own.transpose(1, 2), (before, max(0, needed - before - own.shape[1])))
        kernel = weight.permute(2, 1, 0)
        made.append(functional.conv1d(padded, kernel, c.bias[branch].to(x.dtype), c.stride, 0, c.dilation))
    value = torch.stack([one.transpose(1, 2)[:, :columns] for one in made]).float()
    if residual is not None:
        value = value + residual.float()
    end = (ends.lengths * ends.scale + ends.extra)[:, None, None]
    value = value.masked_fill(torch.arange(columns)[:, None] >= end, 0.0)
    results = (value if keeps_plain else None, activate(activation, value) if activation else None)
    plain, activated = (
        None if r is None else (r if len(made) > 1 else r[0]).to(dtype or x.dtype).contiguous() for r in results
    )
    return plain, activated
