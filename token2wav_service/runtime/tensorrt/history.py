"""Brings a batch's history out of the pools into the form that the estimator's engine reads.

The engine takes [L, rows, H, columns, 2D] at one solver step, rows being all conditional ones, then all unconditional
ones. The pools hold a stream's or a voice's columns of all steps together.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

COLUMN_BLOCK = 32


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
    """Write the prompts' and the rings' keys and values at one solver step.

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
    grid = (layers * 2 * heads, streams, triton.cdiv(prompt_size + window_size, COLUMN_BLOCK))
    _gather_kernel[grid](
        prompts, prompt_lengths, is_first, window[:, step], slots, generated, prompt_out, window_out,
        step * layers * 2 * heads, window.stride(0), prompt_size, window_size,
        H=heads, D2=width, BD2=triton.next_power_of_2(width), KB=COLUMN_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _gather_kernel(
    prompts, prompt_lengths, is_first, window, slots, generated, prompt_out, window_out,
    first_plane, slot_stride, prompt_size, window_size,
    H: tl.constexpr, D2: tl.constexpr, BD2: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * KB + tl.arange(0, KB)
    d = tl.arange(0, BD2)[None, :]
    inside = d < D2
    # Planes are [L, 2, H]; rows of the output are [2, B].
    out_plane = (plane // H * tl.num_programs(1) + stream) * H + plane % H

    count = tl.load(prompt_lengths + stream)
    prompt = tl.load(prompts + stream).to(tl.pointer_type(prompt_out.dtype.element_ty))
    prompt += (first_plane + plane) * count * D2
    value = tl.load(prompt + column[:, None] * D2 + d, mask=(column < count)[:, None] & inside, other=0.0)
    kept = prompt_size * tl.load(is_first + stream)
    target = prompt_out + out_plane * prompt_size * D2
    tl.store(target + column[:, None] * D2 + d, value, mask=(column < kept)[:, None] & inside)

    place = column - prompt_size
    is_written = (place >= 0) & (place < tl.minimum(tl.load(generated + stream), window_size))
    ring = window + tl.load(slots + stream) * slot_stride + plane * window_size * D2
    recent = tl.load(ring + place[:, None] * D2 + d, mask=is_written[:, None] & inside, other=0.0)
    target = window_out + out_plane * window_size * D2
    tl.store(target + place[:, None] * D2 + d, recent, mask=((place >= 0) & (place < window_size))[:, None] & inside)
