"""The fused path's operations: what each computes, on which shapes, and how its kernel is launched.

Products are float16 or bfloat16; the residual stream, norms and softmax are float32. They know nothing of the solver's
schedule or of pools.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from token2wav_service.runtime.kernels import kernels

LOG2_E = 1.4426950408889634
QUERY_BLOCK = 64
"""Whole warp groups of Hopper: 32 took up to twice as long."""
KEY_BLOCK = 64
SNAKE_BLOCK = 1024


def residual_norm(
    hidden: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    out: Tensor,
    convolution: ConvolutionTails | None,
    frames: int,
) -> None:
    """hidden += gate * branch (in place), then out = norm(hidden) * (1 + scale) + shift.

    Args:
        hidden: [2BT, C] float32 residual stream.
        branch: [2BT, C] what the previous branch made; None at the start of a step.
        gate, scale, shift: [C] float32 modulations of this solver step and block.
        out: [2BT, C], or [2BT, 3C] shifted rows when `convolution` is given.
    """
    rows, channels = hidden.shape
    t = convolution
    grid = (rows,)
    kernels.residual_norm_kernel[grid](
        hidden, hidden if branch is None else branch, scale if gate is None else gate, scale, shift, out,
        *(t.arguments() if t else (None, None, None, None, 0, 0, 0)),
        frames, rows // frames // 2,
        HAS_BRANCH=branch is not None, IS_SHIFTED=t is not None, C=channels,
        BLOCK_C=triton.next_power_of_2(channels), num_warps=4,
    )  # fmt: skip


def norm_mish(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, tails: ConvolutionTails, frames: int) -> None:
    """out = shifted rows [2BT, 3C] of mish(layer_norm(x) * weight + bias)."""
    rows, channels = x.shape
    kernels.norm_mish_kernel[(rows,)](
        x, weight, bias, out, *tails.arguments(), frames, rows // frames // 2,
        C=channels, BLOCK_C=triton.next_power_of_2(channels), num_warps=4,
    )  # fmt: skip


def split_heads(qkv: Tensor, norms: tuple[Tensor, ...], q_out: Tensor, own_kv: Tensor, frames: int) -> None:
    """Normalise queries and keys per head, and write keys and values where attention and the window find them.

    Args:
        qkv: [2BT, 3HD] queries, keys, values.
        norms: query weight and bias, key weight and bias, each [D] float32.
        q_out: [2BT, H, D].
        own_kv: [B, 2, H, T, 2D] a view of one solver step and block; may be strided on B.
    """
    rows = qkv.shape[0]
    heads, dim = q_out.shape[1:]
    kernels.split_heads_kernel[(rows,)](
        qkv, *norms, q_out, own_kv, own_kv.stride(0), own_kv.stride(1), frames, rows // frames // 2,
        H=heads, D=dim, BLOCK_H=triton.next_power_of_2(heads), num_warps=2,
    )  # fmt: skip


def attention(
    q: Tensor,
    prompts: Tensor,
    prompt_lengths: Tensor,
    prompt_offset: int,
    window: Tensor,
    own_kv: Tensor,
    out: Tensor,
    slots: Tensor,
    window_lengths: Tensor,
    lengths: Tensor,
    frames: int,
) -> None:
    """Attend to [own chunk | shared prompt | own window].

    Args:
        q: [2BT, H, D].
        prompts: [B] int64 addresses of each stream's voice, laid out [n, L, 2, H, P, 2D].
        prompt_lengths: [B] P.
        prompt_offset: (step * L + layer) * 2 * H, the planes before this step and block.
        window: [slots, 2, H, W, 2D] view of one solver step and block; strided on slots.
        own_kv: as `split_heads` wrote it.
        out: [2BT, HD].
        slots, window_lengths, lengths: [B] int64.
    """
    rows, heads, dim = q.shape
    streams = rows // frames // 2
    grid = (triton.cdiv(frames, QUERY_BLOCK), heads, 2 * streams)
    kernels.attention_kernel[grid](
        q, prompts, prompt_lengths, window, own_kv, out, slots, window_lengths, lengths,
        prompt_offset, window.stride(0), window.stride(1), own_kv.stride(0), own_kv.stride(1),
        window.shape[3], frames, streams, LOG2_E / dim**0.5,
        H=heads, D=dim, QB=QUERY_BLOCK, KB=KEY_BLOCK, num_warps=4,
    )  # fmt: skip


def commit_window(own_kv: Tensor, window: Tensor, slots: Tensor, generated: Tensor, lengths: Tensor) -> None:
    """Write the chunk's newest frames into the streams' rings.

    Args:
        own_kv: [B, n, L, 2, H, T, 2D].
        window: [slots, n, L, 2, H, W, 2D]; frame f of a stream stands at f mod W.
        generated: [B] frames of the stream before this chunk.
        lengths: [B] valid frames of the chunk.
    """
    frames, width = own_kv.shape[-2:]
    size = window.shape[-2]
    planes = own_kv[0].numel() // (frames * width)
    block = min(32, triton.next_power_of_2(frames))
    grid = (planes, own_kv.shape[0], triton.cdiv(min(frames, size), block))
    kernels.commit_window_kernel[grid](
        own_kv, window, slots, generated, lengths, own_kv.stride(0), window.stride(0), size, frames,
        D2=width, TB=block, num_warps=4,
    )  # fmt: skip


def gather_history(
    addresses: Tensor, prompt_lengths: Tensor, window: Tensor, slots: Tensor, generated: Tensor, prompt_size: int
) -> Tensor:
    """Return [B, P, prompt_size + W, 2D]: each stream's prompt columns aligned to the right, then its ring.

    Args:
        addresses: [B] int64 of the voices' keys and values, each [P planes, length, 2D] in the window's dtype.
        prompt_lengths: [B] int64.
        window: [slots, ..., W, 2D], with P planes between.
        generated: [B] columns of the stream so far; places it has not reached read as zero.
    """
    size, width = window.shape[-2:]
    planes = window[0].numel() // (size * width)
    out = window.new_empty(addresses.shape[0], planes, prompt_size + size, width)
    block = 32
    grid = (planes, addresses.shape[0], triton.cdiv(prompt_size + size, block))
    kernels.gather_history_kernel[grid](
        addresses, prompt_lengths, window, slots, generated, out, window.stride(0), prompt_size, size,
        D2=width, KB=block, num_warps=4,
    )  # fmt: skip
    return out


def counter_noise(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
    """Return [B, positions, width] float32: `models.noise.counter_normal` in one kernel, equal to rounding."""
    out = torch.empty(seeds.shape[0], positions, width, dtype=torch.float32, device=seeds.device)
    blocks = triton.cdiv(width, 4)
    block = min(256, triton.next_power_of_2(blocks))
    grid = (seeds.shape[0], positions, triton.cdiv(blocks, block))
    kernels.noise_kernel[grid](seeds, starts, out, positions, width, DOMAIN=domain, BLOCK=block, num_warps=4)
    return out


def snake(x: Tensor, alpha: Tensor, mask: Tensor | None) -> Tensor:
    """Return y + sin^2(alpha y) / alpha with y = x * mask, float32.

    Args:
        x: [B, C, N].
        alpha: [C].
        mask: [B, 1, N] or None.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, channels, size = x.shape
    grid = (rows * channels, triton.cdiv(size, SNAKE_BLOCK))
    kernels.snake_kernel[grid](
        x, alpha, x if mask is None else mask, out, channels, size,
        HAS_MASK=mask is not None, BLOCK=SNAKE_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


class ConvolutionTails:
    """Where one convolution of one solver step and block finds its two old columns and leaves its new ones."""

    def __init__(self, slots: Tensor, lengths: Tensor, tails: Tensor, new_tails: Tensor) -> None:
        """Keep the views.

        Args:
            slots, lengths: [B] int64.
            tails: [slots, 2, 2, C] view (cfg, column, channel), strided on slots and cfg.
            new_tails: [B, 2, 2, C] view with the same cfg stride.
        """
        assert tails.stride(1) == new_tails.stride(1)
        self._tensors = (slots, lengths, tails, new_tails)
        self._strides = (tails.stride(0), tails.stride(1), new_tails.stride(0))

    def arguments(self) -> tuple[object, ...]:
        """Return the kernels' arguments, in order."""
        return (*self._tensors, *self._strides)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x weight^T + bias), tanh form, in one product where the library can."""
    if x.is_cuda:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate="tanh")
