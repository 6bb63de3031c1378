"""The fused kernels, in the Triton language; `ops.py` says what each computes and launches it.

Rows of a hidden tensor are ordered [2, B, T]: conditional then unconditional, stream, frame.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def residual_norm_kernel(
    hidden, branch, gate, scale, shift, out,
    slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride,
    frames, streams,
    HAS_BRANCH: tl.constexpr, IS_SHIFTED: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    x = tl.load(hidden + row * C + channel, mask=valid, other=0.0)
    if HAS_BRANCH:
        added = tl.load(branch + row * C + channel, mask=valid, other=0.0).to(tl.float32)
        x += tl.load(gate + channel, mask=valid, other=0.0) * added
        tl.store(hidden + row * C + channel, x, mask=valid)
    mean = tl.sum(x, 0) / C
    centred = tl.where(valid, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / C + 1e-6)
    y = centred * inverse * (1 + tl.load(scale + channel, mask=valid, other=0.0))
    y += tl.load(shift + channel, mask=valid, other=0.0)
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
def norm_mish_kernel(
    x_ptr, weight, bias, out,
    slots, lengths, tail, new_tail, tail_slot_stride, tail_cfg_stride, new_tail_slot_stride,
    frames, streams,
    C: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK_C)
    valid = channel < C
    x = tl.load(x_ptr + row * C + channel, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / C
    centred = tl.where(valid, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / C + 1e-5)
    y = centred * inverse * tl.load(weight + channel, mask=valid, other=0.0)
    y += tl.load(bias + channel, mask=valid, other=0.0)
    # Mish: y tanh(softplus(y)), with tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2); past 20 it is y itself.
    e = tl.exp(tl.minimum(y, 20.0))
    square = e * (e + 2)
    y = tl.where(y > 20.0, y, y * square / (square + 2))
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


@triton.jit
def split_heads_kernel(
    qkv, q_weight, q_bias, k_weight, k_bias, q_out, own_kv, own_stream_stride, own_cfg_stride,
    frames, streams,
    H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    frame = row % frames
    stream = (row // frames) % streams
    cfg = row // frames // streams
    head = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, D)[None, :]
    valid = head < H
    base = qkv + row * 3 * H * D + head * D + d
    q = tl.load(base, mask=valid, other=0.0).to(tl.float32)
    k = tl.load(base + H * D, mask=valid, other=0.0).to(tl.float32)
    v = tl.load(base + 2 * H * D, mask=valid, other=0.0)
    q -= (tl.sum(q, 1) / D)[:, None]
    k -= (tl.sum(k, 1) / D)[:, None]
    q *= tl.rsqrt(tl.sum(q * q, 1) / D + 1e-5)[:, None]
    k *= tl.rsqrt(tl.sum(k * k, 1) / D + 1e-5)[:, None]
    q = q * tl.load(q_weight + d) + tl.load(q_bias + d)
    k = k * tl.load(k_weight + d) + tl.load(k_bias + d)
    element = q_out.dtype.element_ty
    tl.store(q_out + (row * H + head) * D + d, q.to(element), mask=valid)
    own = own_kv + stream * own_stream_stride + cfg * own_cfg_stride + (head * frames + frame) * 2 * D + d
    tl.store(own, k.to(element), mask=valid)
    tl.store(own + D, v, mask=valid)


@triton.jit
def snake_kernel(x_ptr, alpha, mask_ptr, out, channels, size, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    x = tl.load(x_ptr + row * size + column, mask=inside, other=0.0)
    if HAS_MASK:
        x *= tl.load(mask_ptr + row // channels * size + column, mask=inside, other=0.0)
    a = tl.load(alpha + row % channels)
    wave = tl.sin(x * a)
    tl.store(out + row * size + column, x + wave * wave / (a + 1e-9), mask=inside)


@triton.jit
def _attend_block(q, kv, start, count, best, total, mixed, scale, KB: tl.constexpr, D: tl.constexpr):
    key = start + tl.arange(0, KB)
    d = tl.arange(0, D)
    seen = key < count
    k = tl.load(kv + key[:, None] * 2 * D + d[None, :], mask=seen[:, None], other=0.0)
    v = tl.load(kv + key[:, None] * 2 * D + D + d[None, :], mask=seen[:, None], other=0.0)
    score = tl.dot(q, tl.trans(k)) * scale
    score = tl.where(seen[None, :], score, float("-inf"))
    new_best = tl.maximum(best, tl.max(score, 1))
    weight = tl.exp2(score - new_best[:, None])
    decay = tl.exp2(best - new_best)
    total = total * decay + tl.sum(weight, 1)
    mixed = mixed * decay[:, None] + tl.dot(weight.to(q.dtype), v)
    return new_best, total, mixed


@triton.jit
def attention_kernel(
    q_ptr, prompts, prompt_lengths, window, own_kv, out,
    slots, window_lengths, lengths,
    prompt_offset, window_slot_stride, window_cfg_stride, own_stream_stride, own_cfg_stride,
    window_size, frames, streams, scale,
    H: tl.constexpr, D: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    cfg = (tl.program_id(2) // streams).to(tl.int64)
    stream = (tl.program_id(2) % streams).to(tl.int64)
    query = block * QB + tl.arange(0, QB)
    d = tl.arange(0, D)
    row = (cfg * streams + stream) * frames + query
    inside = query < frames
    q = tl.load(q_ptr + (row[:, None] * H + head) * D + d[None, :], mask=inside[:, None], other=0.0)
    best = tl.full((QB,), float("-inf"), tl.float32)
    total = tl.zeros((QB,), tl.float32)
    mixed = tl.zeros((QB, D), tl.float32)

    own = own_kv + stream * own_stream_stride + cfg * own_cfg_stride + head * frames * 2 * D
    count = tl.load(lengths + stream)
    for start in range(0, count, KB):
        best, total, mixed = _attend_block(q, own, start, count, best, total, mixed, scale, KB, D)

    # The voice's columns at this solver step and layer: [2, H, P, 2D] at `prompt_offset` frames times P.
    count = tl.load(prompt_lengths + stream)
    prompt = tl.load(prompts + stream).to(tl.pointer_type(q_ptr.dtype.element_ty))
    prompt += (prompt_offset + cfg * H + head) * count * 2 * D
    for start in range(0, count, KB):
        best, total, mixed = _attend_block(q, prompt, start, count, best, total, mixed, scale, KB, D)

    count = tl.load(window_lengths + stream)
    recent = window + tl.load(slots + stream) * window_slot_stride + cfg * window_cfg_stride
    recent += head * window_size * 2 * D
    for start in range(0, count, KB):
        best, total, mixed = _attend_block(q, recent, start, count, best, total, mixed, scale, KB, D)

    mixed = mixed / total[:, None]
    out_rows = out + row[:, None] * H * D + head * D + d[None, :]
    tl.store(out_rows, mixed.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def commit_window_kernel(
    own_kv, window, slots, generated, lengths, own_stream_stride, window_slot_stride, window_size, frames,
    D2: tl.constexpr, TB: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + stream)
    # Only the newest frames have a place.
    frame = tl.maximum(length - window_size, 0) + tl.program_id(2) * TB + tl.arange(0, TB)
    place = (tl.load(generated + stream) + frame) % window_size
    d = tl.arange(0, D2)
    keep = (frame < length)[:, None]
    source = own_kv + stream * own_stream_stride + plane * frames * D2 + frame[:, None] * D2 + d[None, :]
    target = window + tl.load(slots + stream) * window_slot_stride + plane * window_size * D2
    tl.store(target + place[:, None] * D2 + d[None, :], tl.load(source, mask=keep), mask=keep)


@triton.jit
def noise_kernel(seeds, starts, out, positions, width, DOMAIN: tl.constexpr, BLOCK: tl.constexpr):
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
    for pair in tl.static_range(2):
        radius = tl.sqrt(-2.0 * tl.log((words[2 * pair].to(tl.float32) + 1.0) * 2.3283064365386963e-10))
        angle = words[2 * pair + 1].to(tl.float32) * 1.4629180792671596e-09
        index = 4 * block + 2 * pair
        tl.store(target + index, radius * tl.cos(angle), mask=index < width)
        tl.store(target + index + 1, radius * tl.sin(angle), mask=index + 1 < width)


@triton.jit
def gather_history_kernel(
    addresses, prompt_lengths, window, slots, generated, out, window_slot_stride, prompt_size, window_size,
    D2: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * KB + tl.arange(0, KB)
    d = tl.arange(0, D2)[None, :]
    count = tl.load(prompt_lengths + stream)
    prompt = tl.load(addresses + stream).to(tl.pointer_type(out.dtype.element_ty)) + plane * count * D2
    frame = column - (prompt_size - count)
    in_prompt = (column < prompt_size) & (frame >= 0)
    value = tl.load(prompt + frame[:, None] * D2 + d, mask=in_prompt[:, None], other=0.0)
    place = column - prompt_size
    # Places fill from 0 up; those never written by this stream may hold anything of an earlier one.
    in_window = (place >= 0) & (place < tl.minimum(tl.load(generated + stream), window_size))
    recent = window + tl.load(slots + stream) * window_slot_stride + plane * window_size * D2
    value += tl.load(recent + place[:, None] * D2 + d, mask=in_window[:, None], other=0.0)
    size = prompt_size + window_size
    target = out + (stream * tl.num_programs(0) + plane) * size * D2
    tl.store(target + column[:, None] * D2 + d, value, mask=(column < size)[:, None])
