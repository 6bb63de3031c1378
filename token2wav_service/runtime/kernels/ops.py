"""The fused path's operations: what each computes, on which shapes, and how its kernel is launched.

Products are float16 or bfloat16; the residual stream, norms and softmax are float32. They know nothing of the solver's
schedule or of pools.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from gpukit.overlap import overlap_options
from token2wav_service.runtime.kernels import kernels

ELEMENTS = 1024
GATHERED_COLUMNS = 32


def residual_norm(
    hidden: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    out: Tensor,
    convolution: ConvolutionTails | None,
    frames: int,
    eps: float = 1e-6,
    *,
    overlaps: bool = False,
) -> None:
    """hidden += gate * branch (in place), then out = norm(hidden) * (1 + scale) + shift.

    Args:
        hidden: [2BT, C] float32 residual stream.
        branch: [2BT, C] what the previous branch made, or [parts, 2BT, C] to be added up; None at the start of a step.
        gate, scale, shift: [C] float32 modulations of this solver step and block; no gate adds the branch as it is.
        out: [2BT, C], or [2BT, 3C] shifted rows when `convolution` is given.
        convolution: of the shifted rows.
        frames: T.
        eps: of the norm.
        overlaps: start while the kernel before it ends.
    """
    rows, channels = hidden.shape
    t = convolution
    grid = (rows,)
    kernels.residual_norm_kernel[grid](
        hidden, hidden if branch is None else branch, scale if gate is None else gate, scale, shift, out,
        *_tail_arguments(t),
        frames, rows // frames // 2, eps, _part_stride(branch),
        PARTS=_parts(branch), HAS_GATE=gate is not None, IS_SHIFTED=t is not None, C=channels,
        BLOCK_C=triton.next_power_of_2(channels), num_warps=4, **overlap_options(overlaps=overlaps),
    )  # fmt: skip


def norm_mish(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    tails: ConvolutionTails | None,
    frames: int,
    added: Tensor | None = None,
    *,
    overlaps: bool = False,
) -> None:
    """out = mish(layer_norm(x) * weight + bias) + added.

    Args:
        x: [2BT, C], or [parts, 2BT, C] to be added up.
        weight, bias: [C] float32.
        out: [2BT, 3C] shifted rows, or [2BT, C] without `tails`.
        tails: of the convolution that reads the shifted rows.
        frames: T.
        added: [C], or [2BT, C]; None adds nothing.
        overlaps: start while the kernel before it ends.
    """
    rows, channels = x.shape[-2:]
    added_stride = added.stride(0) if added is not None and added.dim() > 1 else 0
    kernels.norm_mish_kernel[(rows,)](
        x, weight, bias, bias if added is None else added, out, *_tail_arguments(tails), frames, rows // frames // 2,
        added_stride, _part_stride(x),
        PARTS=_parts(x), HAS_ADDED=added is not None, IS_SHIFTED=tails is not None, C=channels,
        BLOCK_C=triton.next_power_of_2(channels), num_warps=4, **overlap_options(overlaps=overlaps),
    )  # fmt: skip


def shift_rows(
    x: Tensor, branch: Tensor | None, out: Tensor, tails: ConvolutionTails, frames: int, *, overlaps: bool = False
) -> None:
    """out = shifted rows [2BT, 3C] of x [2BT, C] + branch, which is as in `residual_norm`, for a convolution."""
    rows, channels = x.shape
    kernels.shift_rows_kernel[(rows,)](
        x, x if branch is None else branch, out, *tails.arguments(), frames, rows // frames // 2, _part_stride(branch),
        PARTS=_parts(branch), C=channels, BLOCK_C=triton.next_power_of_2(channels), num_warps=4,
        **overlap_options(overlaps=overlaps),
    )  # fmt: skip


def guide(x: Tensor, velocity: Tensor, delta: float, guidance: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x + delta ((1 + guidance) conditional - guidance unconditional), float32 and in `dtype`.

    Args:
        x: [B, T, 80] float32.
        velocity: [2 B T, 80] conditional, then unconditional.
        delta: length of the solver's step.
        guidance: see above.
        dtype: see above.
    """
    out, half = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    grid = (triton.cdiv(x.numel(), ELEMENTS),)
    kernels.guide_kernel[grid](x, velocity, out, half, x.numel(), delta, guidance, BLOCK=ELEMENTS, num_warps=4)
    return out, half


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
        D2=width, BD2=triton.next_power_of_2(width), TB=block, num_warps=4,
    )  # fmt: skip


def gather_history(
    step: int,
    prompts: Tensor,
    prompt_lengths: Tensor,
    is_first: Tensor,
    window: Tensor,
    slots: Tensor,
    generated: Tensor,
    prompt_out: Tensor,
    window_out: Tensor,
) -> None:
    """Write the prompts' and the rings' keys and values at one solver step as an exported estimator reads them.

    Its rows are all conditional ones, then all unconditional ones; the pools hold columns of all steps together.

    Args:
        step: which.
        prompts: [B] int64 addresses of each stream's voice, laid out [n, L, 2, H, P, 2D] in the window's dtype.
        prompt_lengths: [B] P.
        is_first: [B] int64, 1 where no earlier row has the same voice; the other rows of `prompt_out` are left alone.
        window: [slots, n, L, 2, H, W, 2D] rings.
        slots: [B].
        generated: [B] frames of each stream so far; places it has not reached become zero.
        prompt_out: [L, 2B, H, P_max, 2D]; columns from P on become zero.
        window_out: [L, 2B, H, W, 2D].
    """
    streams = slots.shape[0]
    layers, _, heads, prompt_size, width = prompt_out.shape
    window_size = window.shape[-2]
    grid = (layers * 2 * heads, streams, triton.cdiv(prompt_size + window_size, GATHERED_COLUMNS))
    kernels.gather_kernel[grid](
        prompts, prompt_lengths, is_first, window[:, step], slots, generated, prompt_out, window_out,
        step * layers * 2 * heads, window.stride(0), prompt_size, window_size,
        H=heads, D2=width, BD2=triton.next_power_of_2(width), KB=GATHERED_COLUMNS, num_warps=4,
    )  # fmt: skip


def counter_noise(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
    """Return [B, positions, width] float32: `models.noise.counter_normal` in one kernel, equal to rounding."""
    return _draw(seeds, starts, positions, width, domain, is_uniform=False)


def counter_uniform(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int) -> Tensor:
    """Return [B, positions, width] float32: `models.noise.counter_uniform` in one kernel."""
    return _draw(seeds, starts, positions, width, domain, is_uniform=True)


def _draw(seeds: Tensor, starts: Tensor, positions: int, width: int, domain: int, *, is_uniform: bool) -> Tensor:
    out = torch.empty(seeds.shape[0], positions, width, dtype=torch.float32, device=seeds.device)
    blocks = triton.cdiv(width, 4)
    block = min(256, triton.next_power_of_2(blocks))
    grid = (seeds.shape[0], positions, triton.cdiv(blocks, block))
    kernels.noise_kernel[grid](
        seeds, starts, out, positions, width, DOMAIN=domain, IS_UNIFORM=is_uniform, BLOCK=block, num_warps=4
    )
    return out


def _parts(x: Tensor | None) -> int:
    return 0 if x is None else x.shape[0] if x.dim() > 2 else 1


def _part_stride(x: Tensor | None) -> int:
    return x.stride(0) if x is not None and x.dim() > 2 else 0


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


def _tail_arguments(tails: ConvolutionTails | None) -> tuple[object, ...]:
    return tails.arguments() if tails else (None, None, None, None, 0, 0, 0)
