"""The fused kernels, in the Triton language; `ops.py` says what each computes and launches it.

Rows of a hidden tensor are ordered [2, B, T]: conditional then unconditional, stream, frame.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpukit.overlap import await_earlier


@triton.jit
def _store_shifted(out, value, row, frame, frames, tail, new_tail, length, channel, valid, C: tl.constexpr):
    # Row t of `out` [R, 3C] is [y(t-2) | y(t-1) | y(t)]: a causal convolution of kernel 3 becomes one product.
    y = value.to(out.dtype.element_ty)
    # The frame as a vector: Triton 3.9's interpreter can't combine a vector mask with a scalar condition.
    at = frame + 0 * channel
    is_first = valid & (at == 0)
    tl.store(out + row * 3 * C + 2 * C + channel, y, mask=valid)
    tl.store(out + (row + 1) * 3 * C + C + channel, y, mask=valid & (at + 1 < frames))
    tl.store(out + (row + 2) * 3 * C + channel, y, mask=valid & (at + 2 < frames))
    older = tl.load(tail + channel, mask=is_first)
    newer = tl.load(tail + C + channel, mask=is_first)
    tl.store(out + row * 3 * C + channel, older, mask=is_first)
    tl.store(out + row * 3 * C + C + channel, newer, mask=is_first)
    tl.store(out + (row + 1) * 3 * C + channel, newer, mask=is_first & (at + 1 < frames))
    tl.store(new_tail + C + channel, y, mask=valid & (at == length - 1))
    tl.store(new_tail + channel, y, mask=valid & (at == length - 2))
    tl.store(new_tail + channel, newer, mask=is_first & (at + 1 == length))


@triton.jit
def _store_row(
    out, y, row, slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride, frames,
    streams, channel, valid, C: tl.constexpr, IS_SHIFTED: tl.constexpr,
):  # fmt: skip
    # A row as it is, or as `_store_shifted` lays it for the convolution whose tails are given.
    if IS_SHIFTED:
        frame = (row % frames).to(tl.int32)
        stream = (row // frames) % streams
        cfg = row // frames // streams
        slot = tl.load(slots + stream)
        _store_shifted(
            out, y, row, frame, frames,
            tail + slot * tail_slot_stride + cfg * tail_cfg_stride,
            new_tail + stream * new_tail_slot_stride + cfg * tail_cfg_stride,
            tl.load(lengths + stream), channel, valid, C,
        )  # fmt: skip
    else:
        tl.store(out + row * C + channel, y.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _sum_parts(row, part_stride, channel, valid, PARTS: tl.constexpr):
    # Adds up a product's parts in order.
    value = tl.load(row + channel, mask=valid, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        value += tl.load(row + part * part_stride + channel, mask=valid, other=0.0).to(tl.float32)
    return value


@triton.jit(do_not_specialize=("frames", "streams"))
def residual_norm_kernel(
    hidden, branch, gate, scale, shift, out,
    slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride,
    frames, streams, eps, part_stride,
    PARTS: tl.constexpr, HAS_GATE: tl.constexpr, IS_SHIFTED: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    # Constants come from memory, not from a cache: they are read while the kernel before still runs.
    scales = 1 + tl.load(scale + channel, mask=valid, other=0.0)
    shifts = tl.load(shift + channel, mask=valid, other=0.0)
    gates = tl.load(gate + channel, mask=valid & HAS_GATE, other=1.0)
    await_earlier(OVERLAPS)
    x = tl.load(hidden + row * C + channel, mask=valid, other=0.0)
    if PARTS > 0:
        x += gates * _sum_parts(branch + row * C, part_stride, channel, valid, PARTS)
        tl.store(hidden + row * C + channel, x, mask=valid)
    mean = tl.sum(x, 0) / C
    centred = tl.where(valid, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / C + eps)
    y = centred * inverse * scales + shifts
    _store_row(
        out, y, row, slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride, frames,
        streams, channel, valid, C, IS_SHIFTED,
    )  # fmt: skip


@triton.jit(do_not_specialize=("frames", "streams"))
def norm_mish_kernel(
    x_ptr, weight, bias, added, out,
    slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride,
    frames, streams, added_stride, part_stride,
    PARTS: tl.constexpr, HAS_ADDED: tl.constexpr, IS_SHIFTED: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    weights = tl.load(weight + channel, mask=valid, other=0.0)
    biases = tl.load(bias + channel, mask=valid, other=0.0)
    await_earlier(OVERLAPS)
    x = _sum_parts(x_ptr + row * C, part_stride, channel, valid, PARTS)
    mean = tl.sum(x, 0) / C
    centred = tl.where(valid, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / C + 1e-5)
    y = centred * inverse * weights + biases
    # Mish: y tanh(softplus(y)), with tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2); past 20 it is y itself.
    e = tl.exp(tl.minimum(y, 20.0))
    square = e * (e + 2)
    y = tl.where(y > 20.0, y, y * square / (square + 2))
    if HAS_ADDED:
        y += tl.load(added + row * added_stride + channel, mask=valid, other=0.0).to(tl.float32)
    _store_row(
        out, y, row, slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride, frames,
        streams, channel, valid, C, IS_SHIFTED,
    )  # fmt: skip


@triton.jit(do_not_specialize=("frames", "streams"))
def shift_rows_kernel(
    x_ptr, branch, out,
    slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride,
    frames, streams, part_stride,
    PARTS: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    x = tl.load(x_ptr + row * C + channel, mask=valid, other=0.0)
    if PARTS > 0:
        x += _sum_parts(branch + row * C, part_stride, channel, valid, PARTS)
    _store_row(
        out, x, row, slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride, frames,
        streams, channel, valid, C, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=("total",))
def guide_kernel(x, velocity, out, half, total, delta, guidance, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    conditional = tl.load(velocity + at, mask=inside, other=0.0).to(tl.float32)
    unconditional = tl.load(velocity + total + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0)
    value += delta * ((1 + guidance) * conditional - guidance * unconditional)
    tl.store(out + at, value, mask=inside)
    tl.store(half + at, value.to(half.dtype.element_ty), mask=inside)


@triton.jit
def commit_window_kernel(
    own_kv, window, slots, generated, lengths, own_stream_stride, window_slot_stride, window_size, frames,
    D2: tl.constexpr, BD2: tl.constexpr, TB: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + stream)
    # Only the newest frames have a place.
    frame = tl.maximum(length - window_size, 0) + tl.program_id(2) * TB + tl.arange(0, TB)
    place = (tl.load(generated + stream) + frame) % window_size
    d = tl.arange(0, BD2)
    keep = (frame < length)[:, None]
    if BD2 != D2:
        keep = keep & (d < D2)[None, :]
    source = own_kv + stream * own_stream_stride + plane * frames * D2 + frame[:, None] * D2 + d[None, :]
    target = window + tl.load(slots + stream) * window_slot_stride + plane * window_size * D2
    tl.store(target + place[:, None] * D2 + d[None, :], tl.load(source, mask=keep), mask=keep)


@triton.jit
def noise_kernel(
    seeds, starts, out, positions, width, DOMAIN: tl.constexpr, IS_UNIFORM: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    column = tl.program_id(1)
    block = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(starts + row) + column
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    zero = tl.zeros((BLOCK,), tl.uint32)
    counter = zero + block.to(tl.uint32)
    words = tl.philox(tl.load(seeds + row), counter, zero + low, zero + high, zero + DOMAIN)
    target = out + (row.to(tl.int64) * positions + column) * width
    if IS_UNIFORM:
        # The upper 24 bits, as `counter_uniform` takes them.
        for one in tl.static_range(4):
            value = (words[one] >> 8).to(tl.float32) * 5.9604644775390625e-08
            tl.store(target + 4 * block + one, value, mask=4 * block + one < width)
    else:
        for pair in tl.static_range(2):
            radius = tl.sqrt(-2.0 * tl.log((words[2 * pair].to(tl.float32) + 1.0) * 2.3283064365386963e-10))
            angle = words[2 * pair + 1].to(tl.float32) * 1.4629180792671596e-09
            index = 4 * block + 2 * pair
            tl.store(target + index, radius * tl.cos(angle), mask=index < width)
            tl.store(target + index + 1, radius * tl.sin(angle), mask=index + 1 < width)


@triton.jit
def gather_kernel(
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
